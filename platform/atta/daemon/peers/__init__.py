"""The other daemons: connections, pulls, late answers, and the order in which peers are answered."""
