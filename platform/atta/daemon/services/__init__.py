"""What a daemon answers: one module per gRPC service. ``handling`` is what every request passes first."""
