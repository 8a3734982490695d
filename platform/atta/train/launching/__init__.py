"""From a configuration to running trainer processes."""
