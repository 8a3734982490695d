"""How many machines of which kind a graph needs that is larger than any at hand, and what an epoch then takes and costs.

``graph`` scales a sample's memory, ``instances`` reads what machines there are, ``clusters`` simulates those that fit.
"""
