#!/usr/bin/env bash
# Installs Horovod 0.28.1 with PyTorch and MPI into the active virtual environment, from a wheel kept outside
# the checkout and keyed by all that its binary depends on. Builds that wheel first where it is not there yet (3 min).
# With --copy-to FOLDER it installs nothing: the wheel and its source go there, for set-ups with WHEELS=FOLDER.
set -euo pipefail
version=0.28.1
cache=${HPCREC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hpcrec}/wheels
say() { echo "setup: $*"; }

key=$({
  echo "horovod $version"
  python -c 'import sysconfig, torch; print(sysconfig.get_config_var("SOABI"), torch.__version__)'
  # the flags without the paths: the wheel's MPI sits in another .venv in each clone and is the same
  mpicc --version | head -1; mpirun --version | head -2
  [ -x "$VIRTUAL_ENV/bin/mpicc" ] && echo "MPI wheel" || { command -v mpicc; mpicc -show; }
  "${CXX:-c++}" --version | head -1
  echo "${CXXFLAGS:-} ${HOROVOD_GPU_OPERATIONS:-}"
  sha256sum < "$0"
} | sha256sum | cut -c1-16)

wheel=$(ls ${WHEELS:+"$WHEELS/$key"/horovod-*.whl} "$cache/$key"/horovod-*.whl 2>/dev/null | head -1 || true)
if [ -z "$wheel" ]; then
  say "building Horovod $version for this torch, MPI and compiler (about 3 minutes; kept in $cache/$key)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  python -m pip download --quiet --no-deps --no-binary horovod --no-build-isolation --dest "$work" "horovod==$version"
  tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
  # Released before torch asked for C++17 and later: upstream raised the standard, and never released it.
  sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' \
    "$work/horovod-$version/CMakeLists.txt" "$work/horovod-$version/horovod/torch/CMakeLists.txt"
  log=$work/build.log
  # Horovod uses cstdint and string without including them; GCC 13's other headers no longer bring them along.
  if ! (cd "$work" && CXXFLAGS="-include cstdint -include string ${CXXFLAGS:-}" \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 \
        HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_GPU_OPERATIONS="${HOROVOD_GPU_OPERATIONS:-}" \
        MAKEFLAGS="-j$(nproc)" CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
        python -m pip wheel --no-build-isolation --no-deps --wheel-dir "$work/out" "./horovod-$version" > "$log" 2>&1)
  then
    mkdir -p "$cache" && cp "$log" "$cache/horovod-build.log"
    tail -25 "$log" >&2
    echo "setup: Horovod did not build; the whole log is $cache/horovod-build.log" >&2
    exit 1
  fi
  mkdir -p "$cache/.$key.$$"
  cp "$work"/out/horovod-*.whl "$cache/.$key.$$/"
  # a rename, so that a build killed half-way leaves no half wheel
  rm -rf "${cache:?}/$key" && mv "$cache/.$key.$$" "$cache/$key"
  wheel=$(ls "$cache/$key"/horovod-*.whl)
fi
if [ "${1:-}" = --copy-to ]; then
  mkdir -p "$2/$key"
  cp "$wheel" "$2/$key/"
  python -m pip download --quiet --no-deps --no-binary horovod --no-build-isolation --dest "$2" "horovod==$version"
  exit
fi
say "installing $(basename "$wheel")"
python -m pip install --quiet --no-deps --force-reinstall "$wheel"
