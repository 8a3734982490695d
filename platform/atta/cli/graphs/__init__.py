"""Commands that read and write graphs and datasets."""
