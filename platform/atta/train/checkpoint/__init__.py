"""Checkpoints: a file from which a later run continues, files of ranks that go with it, and the best model so far. All
ranks write theirs before the checkpoint, and remove earlier ones after it. So a crash leaves a checkpoint with the
files of all ranks."""
