#!/usr/bin/env bash
# The browser that tests of the report page drive. Needs root to install.
#   tools/browser.sh install   Debian's Chromium (apt), where no Chromium is on the path
set -euo pipefail

die() {
  echo "tools/browser.sh: $*" >&2
  exit 1
}

# As tests/report_page/test_browser.py looks for it.
have_chromium() {
  local program
  for program in chromium chromium-browser google-chrome; do ! command -v "$program" > /dev/null || return 0; done
  return 1
}

install_packages() {
  ! have_chromium || return 0
  [ "$(id -u)" -eq 0 ] || die "install needs root."
  command -v apt-get > /dev/null || die "install knows apt only; this is no Debian."
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y --no-install-recommends chromium ||
    { apt-get update && apt-get install -y --no-install-recommends chromium; }
}

case ${1:-} in
  install) install_packages ;;
  *) die "usage: tools/browser.sh install" ;;
esac
