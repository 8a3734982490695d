"""What a GPU changes: run by hand where one is at hand (``bench/gpu/README.md``)."""
