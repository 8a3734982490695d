#!/usr/bin/env bash
# DuckDB 2.0.1: embeddings of a fixed width lose it in a Parquet file, and the functions for vectors refuse them.
#
# pyarrow writes a column of fixed-size lists to Parquet as a list, with the width in the metadata `ARROW:schema`. pyarrow
# and polars read that and give fixed-size lists back. DuckDB does not: the column is FLOAT[], for which there is no
# array_cosine_similarity, array_distance or array_inner_product. The same table handed over in memory is FLOAT[2], and they
# work. A cast, `embedding::FLOAT[2]`, repairs it, but the user must know the width.
#
# One would guess: all that read what pyarrow wrote see one type. Atta's predictions are such files.
# Ends with 0 as long as they behave so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import duckdb
import polars
import pyarrow
import pyarrow.parquet

path = f"{sys.argv[1]}/e.parquet"
values = pyarrow.array([1, 0, 0, 1], pyarrow.float32())
given = pyarrow.table({"embedding": pyarrow.FixedSizeListArray.from_arrays(values, 2)})
pyarrow.parquet.write_table(given, path)
read = pyarrow.parquet.read_table(path).schema.field("embedding").type
print("pyarrow:", read, "; polars:", polars.read_parquet(path).schema["embedding"])
found = {}
for where in ("given", f"'{path}'"):
    kind = duckdb.sql(f"select typeof(embedding) from {where}").fetchall()[0][0]
    try:
        like = duckdb.sql(f"select array_cosine_similarity(embedding, [1, 0]::FLOAT[2]) from {where}").fetchall()
    except duckdb.BinderException as error:
        like = type(error).__name__
    found[where == "given"] = kind, like
    print("DuckDB, in memory:" if where == "given" else "DuckDB, from the file:", kind, like)
cast = duckdb.sql(f"select array_cosine_similarity(embedding::FLOAT[2], [1, 0]::FLOAT[2]) from '{path}'").fetchall()
print("with a cast:", cast)
expected = {True: ("FLOAT[2]", [(1.0,), (0.0,)]), False: ("FLOAT[]", "BinderException")}
sys.exit(not (found == expected and cast == [(1.0,), (0.0,)] and read == given.schema.field("embedding").type))
PYTHON
