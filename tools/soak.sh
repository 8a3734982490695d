#!/bin/sh
# soak.sh MINUTES: repeat the system tests (slow ones too), outages of a daemon under load, and chaos, each time with
# another seed, until the time is up or something fails. Chaos is for mini-batches, the last one for dorylus and digest-async.
set -eu
cd "$(dirname "$0")/.."
stop=$(($(date +%s) + 60 * $1))
round=0
while [ "$(date +%s)" -lt "$stop" ]; do
  round=$((round + 1))
  echo "== round $round"
  ATTA_SEED=$round ATTA_SESSION_ROUNDS=20 .venv/bin/python -m pytest -q -x -m "not peer" tests/system
  .venv/bin/python -m tests.soak.outages --rounds 30 --seed "$round"
  .venv/bin/atta chaos --minutes 5 --seed "$round"
  .venv/bin/python -m tests.soak.asynchronous --minutes 5 --seed "$round"
done
echo "== passed, rounds: $round"
