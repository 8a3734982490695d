"""Mutable tables: one owner's rows, and what clients ask of them."""
