#!/usr/bin/env bash
# Writes synthetic clicks: prepare.sh [OUT] [SAMPLES] [SEED]
set -euo pipefail
exec hpcrec prepare synthetic --out "${1:-data/synthetic}" --samples "${2:-1000000}" --seed "${3:-0}"
