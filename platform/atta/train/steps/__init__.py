"""The trainer of sampled mini-batches (``minibatch``), and parts of a step that trainers share."""
