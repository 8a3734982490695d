"""From a graph folder to a partitioned dataset."""
