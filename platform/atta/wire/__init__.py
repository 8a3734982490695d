"""Communication between processes: methods, addresses, identities, bulk messages and shared memory."""
