"""How Sphinx makes the documentation site of these pages: ``make docs``. The pages themselves know nothing of it."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "Atta"
version = release = installed_version("atta")
author = "The Atta developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build"]
viewcode_line_numbers = True
nitpicky = True

html_theme = "furo"
html_title = f"Atta {version}"
html_show_copyright = False
html_copy_source = False
highlight_language = "none"  # indented lines are commands; blocks of Python say so

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autoclass_content = "both"  # what constructors take stands with them
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text of each argument says its type, shape and unit
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_param = napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a plain list, as arguments are

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)\s]+)\)")
_SECTION = re.compile(r"[A-Z]\w+:$")
_STAR = re.compile(r"``.*?``|(?<![*\w])\*(?=\w)")


def local_links(text: str, page: str) -> str:
    """``text`` of a page. Links to files of the repository that are no part of the site become names of these files."""

    def replaced(link: re.Match[str]) -> str:
        words, up, target = link.groups()
        path = (HERE / page).parent / up / target.partition("#")[0]
        if path.resolve().is_relative_to(HERE):
            return link[0]
        return f"{words} (`{path.resolve().relative_to(HERE.parent)}`)"

    return _LINK.sub(replaced, text)


def as_restructured(lines: list[str]) -> list[str]:
    """A docstring for Sphinx: indented lines of code become literal blocks, and the star of ``*row_shape`` a star."""
    found: list[str] = []
    before = "Nothing:"  # the latest line that is neither empty nor indented
    for line in lines:
        indented = line.startswith("    ")
        if indented and found and not found[-1].strip() and not _SECTION.match(before):
            if before != "::":
                found += ["::", ""]
            before = "::"
        elif line.strip() and not indented:
            before = line
        literal = indented and before == "::"
        found.append(line if literal else _STAR.sub(lambda star: star[0] if star[0] != "*" else "\\*", line))
    return found


def _docstring(*event: Any) -> None:
    what, lines = event[1], event[-1]
    lines[:] = as_restructured(lines)
    if lines and what in ("attribute", "data", "property"):
        lines[0] = f": {lines[0]}"  # napoleon takes what is before the first colon for the type


def _read(app: Any, page: str, source: list[str]) -> None:
    text = local_links(source[0], page)
    if page == "reference/commands":
        from commands import reference

        from atta.cli.main import cli

        text += reference(cli)
    if page == "guide/notebooks":
        from notebook_page import page_of

        text += page_of((HERE.parent / "examples/first_steps.ipynb").read_text(encoding="utf-8"))
    source[0] = text


def setup(app: Any) -> dict[str, bool]:
    """Connect what changes the pages as they are read."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring, priority=100)  # before napoleon, which knows the sections
    return {"parallel_read_safe": True}
