"""Launch policies, the cost of decisions, and the simulator."""
