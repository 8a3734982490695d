"""Balance of partitions, and predicted remote rows."""
