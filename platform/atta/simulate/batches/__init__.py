"""What batches have in common, and how many vertices they reach."""
