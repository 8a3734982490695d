"""Commands that measure Atta, physical limits and peers."""
