"""What a terminal is shown of names, errors and data that came from others."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with an escape, as in Python's literals, for each character that is neither printable nor a tab or line end.

    Control characters would be obeyed: they clear the screen, give the window a title, or turn the line around.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\t\n" else c.encode("unicode_escape").decode() for c in text)


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).partition("\n")[0]
