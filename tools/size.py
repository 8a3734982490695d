"""Prints how large the product is: what ``platform``, ``samplers`` and ``partition`` hold, without generated files.

    python tools/size.py [--root FOLDER]

Only files that git tracks count. A line of code holds a token other than a comment or a docstring. A function's lines are
all those from its ``def`` to its end. The laboratory in ``bench`` counts apart.
"""

from __future__ import annotations

import argparse
import ast
import math
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("platform", "samplers", "partition")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Size:
    """Figures of the product.

    Attributes:
        code_lines, docstring_lines: of Python.
        native_lines: of C++, as they are.
        files, folders: tracked files, and folders that hold some.
        median_function, long_function: the median and the 90th percentile of functions' lines.
        largest_lines: all lines of the largest Python file, ``largest_file``.
        bench_lines: lines of code of the laboratory, which the other figures leave out.
    """

    code_lines: int
    docstring_lines: int
    native_lines: int
    files: int
    folders: int
    median_function: int
    long_function: int
    largest_lines: int
    largest_file: str
    bench_lines: int


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="checkout to measure")
    found = size_of(parser.parse_args().root)
    print("| figure | value |\n|---|---|")
    for name, value in (
        ("lines of Python code", f"{found.code_lines:,}"),
        ("lines of docstrings", f"{found.docstring_lines:,}"),
        ("lines of C++", f"{found.native_lines:,}"),
        ("files", f"{found.files:,}"),
        ("folders", f"{found.folders:,}"),
        ("lines of a function, median", f"{found.median_function}"),
        ("lines of a function, 90th percentile", f"{found.long_function}"),
        ("largest file, all its lines", f"{found.largest_lines} (`{found.largest_file}`)"),
        ("lines of Python code in bench", f"{found.bench_lines:,}"),
    ):
        print(f"| {name} | {value} |")


def size_of(root: Path) -> Size:
    """The figures of a checkout."""
    paths = [root / name for name in _tracked(root, FOLDERS) if not _is_generated(name)]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    sources = {path: text for path, text in texts.items() if path.suffix == ".py"}
    code = docstrings = 0
    lengths: list[int] = []
    for text in sources.values():
        tree = ast.parse(text)
        documented = set(_docstring_lines(tree))
        code, docstrings = code + len(_code_lines(text, tree) - documented), docstrings + len(documented)
        lengths += [_length(function) for function in ast.walk(tree) if isinstance(function, _Function)]
    largest = max(sources, key=lambda path: sources[path].count("\n"))
    return Size(
        code,
        docstrings,
        sum(text.count("\n") for path, text in texts.items() if path.suffix in {".cpp", ".hpp"}),
        len(paths),
        len({path.parent for path in paths}),
        int(statistics.median(lengths)),
        math.ceil(statistics.quantiles(lengths, n=10, method="inclusive")[-1]),
        sources[largest].count("\n"),
        largest.relative_to(root).as_posix(),
        sum(_spoken((root / name).read_text(encoding="utf-8")) for name in _tracked(root, ("bench/*.py",))),
    )


def _spoken(text: str) -> int:
    """Number of lines of code."""
    tree = ast.parse(text)
    return len(_code_lines(text, tree) - set(_docstring_lines(tree)))


def _tracked(root: Path, under: Sequence[str]) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *under], cwd=root, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def _is_generated(name: str) -> bool:
    return "_pb2." in name


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Numbers of the lines of docstrings: the first statement of a module, class or function, and what follows the name of
    a constant or an attribute."""
    for node in ast.walk(tree):
        for block in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            for statement in block if isinstance(block, list) else ():
                if isinstance(statement, ast.Expr) and _is_text(statement.value):
                    yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    """Numbers of the lines that are neither empty nor a comment, and of all lines of a text. A tokenizer takes long."""
    lines = enumerate(map(str.lstrip, text.splitlines()), 1)
    found = {number for number, line in lines if line and not line.startswith("#")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _length(function: _Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


if __name__ == "__main__":
    main()
