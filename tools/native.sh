#!/usr/bin/env bash
# Prints folders with the binaries of native modules, one for each that is named, and builds those that are not there
# yet. They are kept outside the checkout, keyed by all that they depend on: sources, compiler, instructions of this
# machine, Python's ABI. Needs the active virtual environment with the requirements, or HPCREC_PYTHON, a Python that has
# nanobind.
#   tools/native.sh BUILD_FOLDER MODULE...     of native, cuda (nvcc on the path) and emulated (cuda on the host, for tests)
set -euo pipefail
shopt -s inherit_errexit  # a key that lacks a part would be another module's
cd "$(dirname "$0")/.."
cache=${HPCREC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpcrec}/native
cxx=${CXX:-c++} python=${HPCREC_PYTHON:-python} build=$1
shift
say() { echo "setup: $*" >&2; }

depends_on() {  # all that the binary of a module depends on
  echo "$1 ${CMAKE_ARGS:-} ${CXXFLAGS:-}"
  find native -type f -not -path 'native/tests/*' | LC_ALL=C sort | xargs sha256sum
  "$python" -c 'import sysconfig, nanobind; print(sysconfig.get_config_var("SOABI"), nanobind.__version__)'
  "$cxx" --version | head -1
  "$cxx" -march=native -dM -E -x c++ /dev/null | LC_ALL=C sort
  [ "$1" != cuda ] || nvcc --version
}

for module in "$@"; do
  if [ "$module" = cuda ] && ! command -v nvcc > /dev/null; then
    say "no nvcc on the path, which compiles the kernels of GPUs: load the site's CUDA module (12.0 or newer) first"
    exit 1
  fi
  key=$(depends_on "$module" | sha256sum | cut -c1-16)
  folder=$cache/$module-$key
  if [ ! -d "$folder" ]; then
    say "building the native module _$module (kept in $folder)"
    log=$build/$module.log
    mkdir -p "$build" "$cache"
    # One option a word, as CMake's own tools read the variable.
    read -ra more <<< "${CMAKE_ARGS:-}"
    if ! { cmake -S native -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v "$python")" \
             -DHPCREC_EMULATED=ON -DHPCREC_CUDA="$([ "$module" = cuda ] && echo ON || echo OFF)" "${more[@]}" \
             -DHPCREC_CACHED=OFF \
           && cmake --build "$build" --target "_$module"; } > "$log" 2>&1
    then
      tail -25 "$log" >&2
      say "the native module _$module did not build; the whole log is $log"
      exit 1
    fi
    # A rename, so that a copy that is cut off leaves no half binary. Where two build at a time, either will do.
    work=$(mktemp -d "$cache/.$module.XXXXXX")
    cp "$build/_$module".*.so "$work/"
    chmod 755 "$work"
    mv -T "$work" "$folder" 2> /dev/null || rm -rf "$work"
  fi
  echo "$folder"
done
