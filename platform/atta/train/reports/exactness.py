"""What a model gives on batches beside what it gives on the graph, as a table, as JSON and in one line."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from atta.observe import html
from atta.observe.lastwords import counted

FORMS = {
    "batch": "all neighbours, one hop per hop that the model reads",
    "trimmed": "the same, each layer on what later ones need (trim_to_layer)",
    "blocks": "the same, sources and targets of each layer apart",
    "beside": "a seed with others beside it, and alone",
    "isolated": "a seed without edges",
    "repeated": "edges that come twice, and self-loops",
    "second": "a batch after another one",
}
"""What is compared, in this order."""


@dataclass(frozen=True)
class Finding:
    """What one form gave.

    Attributes:
        form: one of ``FORMS``.
        equal: as on the graph; None: the model cannot be called so, or there was no time.
        error: largest difference, as a share of the largest value of the graph; None: the call fails.
        layer: the first part of the model whose rows differ.
        remedies: what makes the form equal; each was tried.
        why: the cause where the call fails.
    """

    form: str
    equal: bool | None
    error: float | None = 0.0
    layer: str | None = None
    remedies: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class ExactnessReport:
    """What a model gives on batches beside what it gives on the graph. ``print`` shows it as a table.

    Attributes:
        model: its class.
        layers, reads: parts that read neighbours, and hops that the model reads.
        hops: hops of the batches.
        findings: one per form.
        notes: what holds for every form, such as an order of edges that the model wants.
        bias: distance of the first layer's mean over draws of 2 neighbours from its value with all, as a share of
            the largest value; None: it was not measured.
        biased: the mean is off by more than five standard errors somewhere.
        bias_remedies: what makes it unbiased; each was tried.
    """

    model: str
    layers: int
    reads: int
    hops: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    bias: float | None = None
    biased: bool = False
    bias_remedies: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every form that was run is equal; not if there was no time for any."""
        found = {finding.equal for finding in self.findings}
        return True in found and False not in found

    @property
    def line(self) -> str:
        """The first difference in one line; empty if there is none."""
        for found in self.findings:
            if found.equal is False:
                remedy = f"; exact with {', or with '.join(found.remedies)}" if found.remedies else ""
                return f"{self.model} on a batch ({found.form}): {_off(found)}{remedy}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        found = {**asdict(self), "ok": self.ok}
        for finding in found["findings"]:
            if finding["error"] is not None and not math.isfinite(finding["error"]):
                finding["error"] = None
        return found

    def __str__(self) -> str:
        layers, reads, hops = counted(self.layers, "layer"), counted(self.reads, "hop"), counted(self.hops, "hop")
        head = f"{self.model} reads neighbours over {reads}, in {layers}; batches of {hops}"
        rows = [("form", "rows", "first in", "equal with"), *(_cells(found) for found in self.findings)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        if self.bias is not None:
            lines.append(f"fan-outs: {self._said_bias()}")
        causes = {f"{found.form}: {found.why}": None for found in self.findings if found.why}
        return "\n  ".join([head, *lines, *causes, *self.notes])

    def _repr_html_(self) -> str:
        return html.lines(str(self))

    def _said_bias(self) -> str:
        if not self.biased:
            return "unbiased: the first layer's mean over draws is its value with all neighbours"
        remedy = f"; unbiased with {', or with '.join(self.bias_remedies)}" if self.bias_remedies else ""
        return f"biased: the first layer's mean over draws is off by {self.bias:.2g}{remedy}"


def _cells(found: Finding) -> tuple[str, str, str, str]:
    if found.equal is not False:
        return found.form, "equal" if found.equal else "not run", "", ""
    finite = found.error is not None and math.isfinite(found.error)
    size = f"{found.error:.2g} off" if finite else "fails" if found.why else "no numbers"
    return found.form, size, found.layer or "", ", or ".join(found.remedies) or "no remedy found"


def _off(found: Finding) -> str:
    if found.why:
        return f"fails: {found.why}"
    finite = found.error is not None and math.isfinite(found.error)
    size = f"off by {found.error:.2g} of the largest value" if finite else "no numbers"
    return f"{size}, first in {found.layer}"
