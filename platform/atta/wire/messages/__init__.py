"""Requests and replies as bytes: large fields without a copy, bounds of fields, long requests in pieces, and calls."""
