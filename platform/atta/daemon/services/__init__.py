"""What a daemon answers: one module per gRPC service, and the checks before a request is served."""
