"""One optimiser step of a trainer and where its time goes."""
