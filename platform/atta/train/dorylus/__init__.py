"""``--strategy dorylus``: a trainer's vertices in intervals, whose tasks overlap (Thorpe et al., OSDI 2021).

``decisions`` has what is decided, without clocks, sockets or torch. ``split`` divides layers into what trainers and what
workers compute.
"""
