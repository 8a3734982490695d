"""What a pipeline of intervals decides: who computes what, and when. Pure: times are passed in, and nothing is sent."""
