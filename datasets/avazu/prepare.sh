#!/usr/bin/env bash
# Converts Avazu's click log: prepare.sh OUT TRAIN
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 OUT FILE...   (train or train.csv, plain or .gz)" >&2
  exit 2
fi
out=$1
shift
exec hpcrec prepare table --map "$(dirname "$0")/avazu.toml" --out "$out" --split order:0.8,0.1,0.1 "$@"
