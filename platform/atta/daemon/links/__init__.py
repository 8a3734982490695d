"""Links: sockets on which daemons exchange rows and sampled edges as frames, without the interpreter.

gRPC negotiates a link and stays the complete fallback: what a link does not answer is asked for again by messages.
Reading order: ``tokens`` (pure), ``listening`` and ``attaching`` (both ends of the negotiation), ``steps`` (what a
step of a batch asks), ``owners`` (the fallback). The frames themselves are in ``platform/atta/daemon/native``.
"""
