"""Reports of a training run: figures of epochs (``epochs``), the whole run (``run``), lines on a terminal (``display``)."""
