"""Other systems, each started as its own users would start it. A peer that cannot run says why."""
