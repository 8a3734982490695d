"""How a daemon makes batches: the shell around the scheduler, its tasks, sessions and slots."""
