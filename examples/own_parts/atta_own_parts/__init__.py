"""One part of each kind; ``pyproject.toml`` announces them to Atta."""
