"""Trainers for tests, forked from a process that has imported torch and PyG: the imports outlast most tests' training.

``parent`` imports and forks. ``python`` stands for the interpreter. ``python -m atta.train.launching.worker`` becomes a
child of ``parent`` with the caller's arguments, environment, folder and standard streams. Other commands run as
usual.
"""
