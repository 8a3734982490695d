"""Helpers of the importers."""
