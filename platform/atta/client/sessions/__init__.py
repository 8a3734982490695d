"""One session of a client: its stream of batches, its lease and its slots."""
