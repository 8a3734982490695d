"""The distributed table store: each daemon serves the rows of its own partition, straight from the mapped files."""
