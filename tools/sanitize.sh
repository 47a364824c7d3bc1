#!/usr/bin/env bash
# The kernel tests on a native module built with AddressSanitizer and UndefinedBehaviorSanitizer: a read or write out of
# bounds, or an overflow, ends the run. Arguments are pytest's. Needs the active virtual environment and gcc.
#   tools/sanitize.sh thread     the native test program with ThreadSanitizer instead, kernels on 2 to 7 threads
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = thread ]; then
  folder=build/thread
  cmake -S native -B "$folder" -G Ninja -DHPCREC_SANITIZE=thread -DHPCREC_TESTS=ON \
    -DPython_EXECUTABLE="$(command -v python)" > /dev/null
  cmake --build "$folder" --target hpcrec_threads
  # The sanitizer has to find a race that is there, or its silence says nothing.
  if "$folder/hpcrec_threads" --race > /dev/null 2>&1; then
    echo "sanitize: ThreadSanitizer does not find the race that --race makes" >&2
    exit 1
  fi
  "$folder/hpcrec_threads" "${2:-1}"
  exit
fi

# The same package with another build of its module: a virtual environment over the active one, so that it comes first.
venv=$PWD/build/address/venv
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -x "$venv/bin/python" ] || python -m venv --without-pip "$venv"
own=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$packages" > "$own/under.pth"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --ignore-installed \
  --config-settings=build-dir=build/address/cmake --config-settings=cmake.define.HPCREC_SANITIZE=address \
  --config-settings=cmake.define.HPCREC_EMULATED=ON --config-settings=cmake.define.HPCREC_CACHED=OFF --editable .
module=$("$venv/bin/python" -c 'import importlib.util; print(importlib.util.find_spec("hpcrec._native").origin)')
case $module in "$venv"/*) ;; *) echo "sanitize: the module is $module, not one of $venv" >&2; exit 1 ;; esac

gcc_file() { "${CXX:-c++}" -print-file-name="$1"; }
# Python is not built with the sanitizers: their runtimes come first by hand. It leaks at exit by design.
export LD_PRELOAD="$(gcc_file libasan.so) $(gcc_file libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
# The sanitizer has to find what is there, or its silence says nothing: a write past the end of an array. Its report is
# looked for: the module may fail for other reasons, as it does where nothing has brought OpenMP's runtime.
said=$("$venv/bin/python" -c 'import hpcrec.kernels, hpcrec._native as m, numpy as np
m.squared_norm(np.zeros((8, 64)), np.zeros(1))' 2>&1) || true
case $said in
  *heap-buffer-overflow*) ;;
  *) printf 'sanitize: AddressSanitizer does not find a write past the end of an array:\n%s\n' "$said" >&2; exit 1 ;;
esac
[ ! -e "$VIRTUAL_ENV/lib/libmpi.so" ] || export MPI4PY_LIBMPI=$VIRTUAL_ENV/lib  # pytest-mpi imports it
unset PYTHONDONTWRITEBYTECODE  # as images of containers set it: each run would compile every test anew
# Without the tests that only start processes: to see which OpenMP runtime torch and Horovod bring, and what nvcc says.
"$venv/bin/python" -m pytest -q -m "not slow" tests/kernels \
  --deselect tests/kernels/test_kernels_runtime.py::test_one_openmp_runtime \
  --deselect tests/kernels/test_kernels_device.py::test_compiles_without_warnings_spills_or_stacks "$@"
