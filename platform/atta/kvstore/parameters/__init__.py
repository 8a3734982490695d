"""The weights of training jobs without barriers: versions, updates that are applied once, clocks and leases.

All of it is decided without sockets, threads and clocks: callers pass the time.
"""
