"""Measurements that bench/results records and `atta bench` does not have; each room is a subject."""
