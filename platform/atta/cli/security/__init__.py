"""Commands that make what daemons and callers trust each other by."""
