"""One mini-batch while it is made, and where its arrays lie."""
