"""Keeps the mutable tables of a daemon: their log, its copy at a backup, and the backup that takes over."""
