"""Benchmarks of one piece at a time: sampling, table rows, the cache, partitioning."""
