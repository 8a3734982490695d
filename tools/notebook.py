"""Runs the example notebooks and stores their outputs: ``python tools/notebook.py``. Needs ``atta[notebook,train]``.

Outputs are stored because the site shows them: it is built without torch, daemons or the time to train. A test runs the
notebooks again and compares. Nothing of this machine stays: cells run in a temporary folder and name files within it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def executed(path: Path, folder: str) -> Any:
    """The notebook at ``path`` with new outputs, after all its cells have run in ``folder``."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=120, resources=where, record_timing=False, coalesce_streams=True).execute()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
            output.pop("transient", None)
    return notebook


def main() -> None:
    """Run and rewrite each notebook."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["IPYTHONDIR"] = folder
            nbformat.write(executed(path, folder), path)
        print(path)


if __name__ == "__main__":
    main()
