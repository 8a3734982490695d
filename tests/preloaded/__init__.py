"""Processes of tests, forked from processes that have imported what they need: imports outlast most tests' work.

Commands of a test, such as the daemons of ``atta.local``: ``commands`` replaces ``subprocess.Popen``, and ``forker``
imports and forks.

Trainers, also those that a command starts: ``parent`` has imported torch and PyG, and forks. ``python`` stands for the
interpreter. ``python -m atta.train.launching.worker`` becomes a child of ``parent`` with the caller's arguments,
environment, folder and standard streams. Other commands run as usual.
"""
