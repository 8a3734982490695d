"""One mini-batch while it is made, and the layout of its arrays in memory."""
