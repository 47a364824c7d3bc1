#!/usr/bin/env bash
# Converts Criteo's 1 TB click logs: prepare.sh OUT RANKS DAY_0 ... DAY_23, the last day for test.
set -euo pipefail
if [ $# -lt 4 ]; then
  echo "usage: $0 OUT RANKS DAY...   (day_0 ... day_23 or parts of them, plain or .gz, in order; the last is for test)" >&2
  exit 2
fi
out=$1 ranks=$2
shift 2
# A hash split of one part needs no pass that counts lines.
convert() { hpcrec run -n "$ranks" -- prepare criteo --rows 10000000 --max-bad 0.0001 --split hash:1,0,0 --out "$@"; }
convert "$out/train" "${@:1:$#-1}"
convert "$out/test" "${@: -1}"
