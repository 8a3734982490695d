"""What importers share."""
