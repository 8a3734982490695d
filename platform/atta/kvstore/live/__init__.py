"""Versions of the read-only tables of a dataset: which there are, who reads them, and how they lie on the disk."""
