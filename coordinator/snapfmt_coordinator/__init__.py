"""Sequences the Gym and RL writers through one save and one restore.

Its phases, in order, with the names that a stored timeline uses
(`snapfmt_schemas.timeline.Phase.name`):

Save
    gate        close the dispatch gate, flush acknowledgements owed
    prepare     pause model admission, park rollouts at a turn boundary, freeze sessions, drain
    commit      agents, then the model server, then resources hand over their parts
    cut         take RL's own rows and state by reference, under the data-plane barrier
    resume      resources, then model admission, then agents, then dispatch
    write       encode, hash and write what the cut holds, while rollouts run
    publish     make the snapshot exist, by one rename or one conditional write

Restore
    discover    ask every participant what it can restore
    select      newest snapshot whose fingerprints match; check it before touching anything live
    load        TransferQueue, model lineage, parked rollouts as run n+1, sessions; all paused
    assign      the controller gives each unfinished rollout its new run number
    discard     continuations that used restart-only resources start over
    resume      resources, model admission, agents; the pumps send unfinished rollouts again

A failure before `publish` goes through the same `resume` and publishes nothing. A participant
that fails during a restore leaves no participant restored.
"""
