"""Real processes that are killed, stopped, cut off and starved, while what they deliver is checked."""
