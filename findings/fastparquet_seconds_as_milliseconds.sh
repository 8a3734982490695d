#!/usr/bin/env bash
# fastparquet 2026.9.0 with pandas 3.1.1: dates in whole seconds come out of the file in January 1970.
#
# pandas 3 keeps the resolution that dates come with: days of Python's datetime.date become datetime64[s]. fastparquet
# divides the count of seconds by 1,000, as if it were microseconds, and calls the column milliseconds. So 1 May 2024 is
# 1970-01-01 00:28:34 to every reader of the file. Nothing warns. Dates in ms come out right.
#
# One would guess: a unit that Parquet has not is converted (as pyarrow does: it multiplies by 1,000), or
# refused. Atta imports what the file says, so `atta schema` finds a column of times that are all in 1970.
# Ends with 0 as long as both behave so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pandas==3.1.1 fastparquet==2026.9.0 pyarrow==26.0.1
"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import datetime
import sys

import pandas
import pyarrow.parquet

day, folder = datetime.datetime(2024, 5, 1), sys.argv[1]
table = pandas.DataFrame({"at": pandas.to_datetime([day.date()])})
found = {}
for unit in ("as given", "ms"):
    one = table if unit == "as given" else table.astype({"at": f"datetime64[{unit}]"})
    for engine in ("fastparquet", "pyarrow"):
        path = f"{folder}/{engine}-{unit}.parquet"
        one.to_parquet(path, engine=engine)
        read = pyarrow.parquet.read_table(path)
        found[engine, unit] = read["at"].to_pylist()[0]
        print(f"{one['at'].dtype} written by {engine}: {read.schema.field('at').type} {found[engine, unit]}")
wrong = found.pop(("fastparquet", "as given"))
seconds = day.replace(tzinfo=datetime.timezone.utc).timestamp()
sys.exit(wrong != datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=seconds // 1000) or set(found.values()) != {day})
PYTHON
