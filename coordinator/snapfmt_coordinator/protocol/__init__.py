"""What travels between the coordinator's side and a Gym server; no I/O."""
