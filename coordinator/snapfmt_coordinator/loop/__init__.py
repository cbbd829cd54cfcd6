"""A small RL loop around the coordinator: its parts are Ray actors, its servers real processes.

state, saved      which prompt, rollout and run is where; to and from the stored records
control, pumps    what the Single Controller does, over ports; plain asyncio
ray_*             the actors, thin around the above
run, worker       one run from start to end, in this process or in one that may be killed
"""
