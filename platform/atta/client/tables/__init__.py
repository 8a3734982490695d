"""Mutable tables of a cluster as a client uses them."""
