"""How a pipeline reaches others: sockets with deadlines, workers, the weights on a daemon, and other trainers."""
