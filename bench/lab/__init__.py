"""The laboratory of the benchmarks: hosts, measured processes, limits of the machine."""
