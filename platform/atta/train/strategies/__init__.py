"""Training strategies, one file each."""
