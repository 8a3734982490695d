"""Mutable tables: one owner's rows, and the requests of clients."""
