"""What a run tells: figures of its epochs (``epochs``), the whole run (``run``), lines for people (``display``)."""
