"""``--strategy dorylus``: a trainer's vertices in intervals, whose tasks overlap (Thorpe et al., OSDI 2021)."""
