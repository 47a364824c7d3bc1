#!/usr/bin/env bash
# Runs every benchmark, one after the other, each with its JSON in benchmarks/results. Options go to each of them.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p benchmarks/results
rc=0 found=0
for file in benchmarks/[!_]*.py; do
  [ -e "$file" ] || continue
  found=1 name=$(basename "$file" .py)
  echo "=== $name"
  python "$file" --json "benchmarks/results/$name.json" "$@" || { echo "bench: $name failed" >&2; rc=1; }
done
[ $found = 1 ] || echo "bench: there is no benchmark in benchmarks/ yet"
python tools/results.py
exit $rc
