"""The weights of training jobs without barriers. Pure: callers pass the time."""
