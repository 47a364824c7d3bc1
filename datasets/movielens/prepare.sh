#!/usr/bin/env bash
# Converts MovieLens: prepare.sh OUT RATINGS USERS ITEMS
set -euo pipefail
if [ $# -ne 4 ]; then
  echo "usage: $0 OUT RATINGS USERS ITEMS   (ratings.dat users.dat movies.dat, u.data u.user u.item, or CSV)" >&2
  exit 2
fi
exec hpcrec prepare movielens --out "$1" --ratings "$2" --users "$3" --items "$4" \
  --split hash:0.8,0,0.2 --history 50
