"""The other daemons: connections and messages, links, pulls that batches share."""
