"""Simulation: the code that ships, in simulated time, in one process, under seeded faults.

A seed decides everything: delays, lost answers, kills, and which thread runs next. So a failure can be replayed with
``python -m tests.sim --from SEED``.
"""
