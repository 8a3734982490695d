"""The sampler daemon: a long-running process that serves one partition."""
