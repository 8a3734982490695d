"""Trainers for tests from a process that has imported torch and PyG already: importing them takes longer than most tests train.

``parent`` imports and forks, ``python`` stands for the interpreter: whoever runs ``python -m atta.train.launching.worker`` through
it gets a child of ``parent`` with its own arguments, environment, folder and standard streams. Anything else it runs as usual.
"""
