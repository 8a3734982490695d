"""Accuracy and memory of training."""
