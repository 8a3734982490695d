"""Ways to move rows, and clients that stall."""
