"""Sampling over a whole graph in this process, without daemons."""
