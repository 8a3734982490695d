"""This machine: its identity, memory, processors and control groups."""
