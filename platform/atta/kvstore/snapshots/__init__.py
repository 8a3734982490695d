"""Writes tables to disk and reads them."""
