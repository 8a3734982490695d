"""``atta bench partition`` and the comparison of methods."""
