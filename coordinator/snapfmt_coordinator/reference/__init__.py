"""Reference Gym servers: small, deterministic, real HTTP processes around the participants.

They stand where a real Gym stands: a policy model server, an agent server and resources servers.
Everything that they produce is a function of the task and of the rollout's id alone, so that an
interrupted and restored run can be compared with one that was left in peace.
"""
