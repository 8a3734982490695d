"""Versions of tables in a daemon: what sessions and peers read, and how a new version is published."""
