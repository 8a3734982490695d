"""What a person sees of a run: nothing, lines, and on a terminal a bar of batches that goes away."""

from __future__ import annotations

import io
import sys

import pytest

from atta.train.reports.display import Display


class Terminal(io.StringIO):
    """Text that is kept, as a terminal of 80 columns would get it."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, *, enabled: bool) -> str:
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    display = Display(enabled)
    with display.batches("epoch 3", 2) as step:
        step()
        step()
    display.line("epoch 3 is done")
    return screen.getvalue()


def test_a_terminal_gets_a_bar_and_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), enabled=True)
    assert "epoch 3" in text.partition("epoch 3 is done")[0]
    assert "2/2" in text
    assert text.endswith("epoch 3 is done\n")


def test_a_file_gets_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO(), enabled=True) == "epoch 3 is done\n"


def test_quiet_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Terminal(), enabled=False) == ""
