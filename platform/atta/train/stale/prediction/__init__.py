"""Predicts rows of other trainers from their past instead of reading the last ones unchanged (SAT)."""
