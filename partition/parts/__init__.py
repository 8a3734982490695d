"""Partitions in memory: which one owns which vertex, what one holds, and several that are read as one."""
