"""The demonstration: rollouts run, snapshots are taken, everything is killed, the run goes on."""
