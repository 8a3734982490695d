"""Settings of a training run as the trainers see them: ``common`` to all runs, and a dataclass for each strategy.
``TrainConfig`` has the fields of all of them, for the command line and Python. Trainers and models take the class whose
settings they read, so they do not depend on which strategies there are. A strategy's record names its class."""
