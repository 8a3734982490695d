"""Checks that a CycloneDX list names the packages of an environment, each once and with its version, and no paths.

python tools/check_sbom.py LIST.cdx.json ENVIRONMENT/bin/python
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def faults(document: dict[str, Any], installed: dict[str, str], text: str) -> list[str]:
    """What is wrong with a list.

    Args:
        document: the list, as JSON.
        installed: versions by name, all that it must have.
        text: of the file.
    """
    listed = [(part["name"], part.get("version")) for part in document.get("components", [])]
    found = [f"{name} is listed twice" for name in {n for n, _ in listed if [m for m, _ in listed].count(n) > 1}]
    for name in sorted(installed.keys() - dict(listed).keys()):
        found.append(f"{name} is missing")
    for name, version in listed:
        if name not in installed:
            found.append(f"{name} is not installed")
        elif installed[name] != version:
            found.append(f"{name} {installed[name]} is listed as {version}")
    return found + ["a path of this machine is in it"] * ("file://" in text)


def main() -> int:
    """1: something is wrong with the list."""
    file, python = sys.argv[1:]
    pip = [sys.executable, "-m", "pip", "--python", python, "list", "--format", "json", "--disable-pip-version-check"]
    packages = json.loads(subprocess.run(pip, capture_output=True, text=True, check=True).stdout)
    text = Path(file).read_text()
    document = json.loads(text)
    # The package itself is the list's subject, not one of its parts.
    installed = {p["name"]: p["version"] for p in packages if p["name"] != "atta"}
    wrong = faults(document, installed, text)
    for fault in wrong:
        print(f"{file}: {fault}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
