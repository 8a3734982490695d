"""``atta simulate --strategy dorylus``: intervals and workers in simulated time, with the decisions that trainers run."""
