"""The actor's side of the control routes: asks every Gym server, in the right order, in time."""
