"""Trainers of embeddings: edges, walks or the features themselves say what is to be learnt, not a table of targets."""
