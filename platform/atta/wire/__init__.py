"""What crosses between processes: methods, addresses, identities, bulk messages and shared memory."""
