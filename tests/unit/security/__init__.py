"""Roles, tokens and certificates."""
