#!/usr/bin/env bash
# Runs every linter, shows what each found, fails if any failed. Needs the active virtual environment.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()
check() {
  local name=$1 start=$SECONDS
  shift
  if "$@"; then echo "lint: $name: ok ($((SECONDS - start)) s)"; else failed+=("$name"); echo "lint: $name: FAILED" >&2; fi
}
# Each file by itself: `bash -n a b` reads a only.
shell_syntax() {
  local rc=0 file
  while IFS= read -r file; do bash -n "$file" || rc=1; done < <(tracked | grep -E '\.(sh|sbatch)$|^\.ci/run$')
  return $rc
}
# What git tracks or would: no build folder, no data. In a tree without git, what find sees.
tracked() {
  (git ls-files --cached --others --exclude-standard 2>/dev/null || find . -type f -not -path './.*' -not -path './build/*' | cut -c3-) \
    | while IFS= read -r file; do [ -f "$file" ] && echo "$file"; done
}
native() { tracked | grep -E '^(native|benchmarks)/.*\.(c|cc|cpp|h|hpp|cu|cuh)$'; }
# Benchmarks have few types; what has to be found is a call of something that the package has no more.
mypy_benchmarks() {
  local code off=()
  for code in assignment index misc operator union-attr var-annotated; do off+=(--disable-error-code "$code"); done
  MYPYPATH=benchmarks mypy --config-file= --ignore-missing-imports --check-untyped-defs --explicit-package-bases \
    "${off[@]}" benchmarks
}
no_wide_whitespace() { ! tracked | xargs -d '\n' grep -nIE '[[:space:]]+$' -- /dev/null; }

check "ruff check" ruff check --quiet .
check "ruff format" ruff format --check --quiet .
check "mypy" mypy
check "mypy of benchmarks" mypy_benchmarks
check "clang-format" xargs -r -d '\n' clang-format --dry-run -Werror < <(native)
check "codespell" xargs -r -d '\n' codespell < <(tracked)
check "shell syntax" shell_syntax
check "trailing whitespace" no_wide_whitespace
check "results page" python tools/results.py --check
if [ ${#failed[@]} -gt 0 ]; then
  printf 'lint: failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
  exit 1
fi
