"""Fuzzing: what crosses the wire in either direction, and every file that is read, drawn and changed at random.

``python -m tests.fuzz --minutes N`` runs all targets; the tests run each for a few seconds.
"""
