"""What a training loop iterates over: loaders, and the mini-batches that they give."""
