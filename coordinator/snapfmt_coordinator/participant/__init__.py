"""What a Gym server mounts to take part in saves and restores.

`fence` says when admission is closed and for whom; `agent`, `model` and `resources` are the
three kinds of participant; `router` puts one of them behind HTTP. Only `router` and `bodies`
know of HTTP, so that another generation of the protocol is another router over the same
participants.
"""
