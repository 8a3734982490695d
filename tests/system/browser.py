"""Headless Chromium, spoken to by WebDriver's JSON over HTTP. It reaches this machine only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atta.observe.machine.held import HeldAddresses
from tests.waiting import eventually

__all__ = ["Browser", "missing"]

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""How WebDriver's answers name an element."""


def missing() -> str:
    """What lacks for a browser; empty: nothing."""
    lacks = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(lacks)} on this machine" if lacks else ""


class Browser:
    def __init__(self, driver: str, session: str) -> None:
        self._session = f"{driver}/session/{session}"

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Browser]:
        """Chromium with an empty profile; ``folder`` gets what it downloads."""
        held = HeldAddresses()
        port = held.ports[0]
        driver = f"http://127.0.0.1:{port}"
        flags = [
            "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--window-size=1280,900", f"--user-data-dir={folder}/profile",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        ]  # fmt: skip
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        options = {"args": flags, "prefs": {"download.default_directory": str(folder)}}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        child = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        try:
            assert eventually(lambda: _ready(driver))
            made = _ask(f"{driver}/session", {"capabilities": {"alwaysMatch": wanted}})
            browser = cls(driver, made["sessionId"])
            try:
                yield browser
            finally:
                _ask(browser._session, method="DELETE")
        finally:
            child.terminate()
            child.wait()
            held.close()

    def go(self, url: str) -> None:
        _ask(f"{self._session}/url", {"url": url})

    def resize(self, width: int, height: int) -> None:
        _ask(f"{self._session}/window/rect", {"width": width, "height": height})

    def run(self, script: str) -> Any:
        return _ask(f"{self._session}/execute/sync", {"script": script, "args": []})

    def click(self, css: str) -> None:
        found = _ask(f"{self._session}/element", {"using": "css selector", "value": css})
        _ask(f"{self._session}/element/{found[ELEMENT]}/click", {})

    def errors(self) -> list[str]:
        told = _ask(f"{self._session}/se/log", {"type": "browser"})
        return [line["message"] for line in told if line["level"] == "SEVERE"]


def _ready(driver: str) -> bool:
    try:
        return bool(_ask(f"{driver}/status")["ready"])
    except OSError:
        return False


def _ask(url: str, body: Any = None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["value"]
