#!/usr/bin/env bash
# Converts Criteo click logs in the Kaggle layout: prepare.sh OUT FILE...
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 OUT FILE...   (train.txt or parts of it, plain or .gz, in order)" >&2
  exit 2
fi
out=$1
shift
exec hpcrec prepare criteo --out "$out" --split hash:0.8,0,0.2 "$@"
