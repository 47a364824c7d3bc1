#!/usr/bin/env bash
# Puts all that `make setup WHEELS=FOLDER` installs into a folder, for machines without a network: the pinned
# requirements and what they need, Horovod as it was built here, and its and mpi4py's sources for other compilers and
# MPI libraries. For this Python and platform. Needs the active virtual environment.
#   tools/wheels.sh [FOLDER]     wheels, where none is given
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-wheels}
# Made beside its place and renamed, so that an interrupted run leaves no half of it.
rm -rf "$folder.tmp"
mkdir -p "$folder.tmp"
unset PIP_NO_INDEX WHEELS
mpi=tools/requirements-mpi.txt
[ ! -x "$VIRTUAL_ENV/bin/mpichversion" ] || mpi=tools/requirements-mpich.txt
pip download --quiet --disable-pip-version-check --dest "$folder.tmp" --only-binary :all: \
  -r tools/requirements-build.txt -r tools/requirements-run.txt -r tools/requirements-tests.txt \
  -r tools/requirements-docs.txt -r "$mpi"
pip download --quiet --disable-pip-version-check --dest "$folder.tmp" --no-deps --no-binary mpi4py \
  "$(grep '^mpi4py' tools/requirements-run.txt)"
tools/horovod.sh --copy-to "$folder.tmp"
rm -rf "$folder"
mv "$folder.tmp" "$folder"
echo "wheels: $(ls "$folder" | wc -l) files, $(du -sh "$folder" | cut -f1), in $folder"
echo "wheels: on the other machine: make setup WHEELS=/path/to/$(basename "$folder")"
