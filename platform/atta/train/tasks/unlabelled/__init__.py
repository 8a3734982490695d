"""Learning without labels: ``record`` has the tasks, and ``probe`` the classifier that judges embeddings."""
