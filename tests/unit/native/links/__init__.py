"""Native links between daemons."""
