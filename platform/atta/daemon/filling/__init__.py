"""Brings what batches will want from other daemons before they ask: in the background, piece by piece."""
