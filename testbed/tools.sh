#!/usr/bin/env bash
# testbed/tools.sh python|node   installs what is missing into the cache; prints the directory of the binaries
#   python  a venv with what requirements.txt names: schemathesis, which tries the facade by its own document, and the
#           libraries with which the guides' agents sign and listen
#   node    tsx, which runs the guide's TypeScript
set -euo pipefail
cd "$(dirname "$0")"
. ./lib.sh

# Runs on Node 18, which Debian 12 has.
TSX=tsx@4.23.15

# into DIR COMMAND...: runs COMMAND once to fill DIR, also when several ask at once; the stamp says that it is whole
into() {
  local dir=$1; shift
  mkdir -p "$TESTBED_CACHE"
  exec 9>"$dir.lock"; flock 9
  if [ ! -e "$dir/.complete" ]; then
    rm -rf "$dir"
    "$@"
    touch "$dir/.complete"
  fi
  exec 9>&-
}

fill_python() { # DIR: a venv knows its own path, so it is made where it stays
  say "installing schemathesis and its like into the cache (about 20 s)"
  python3 -m venv "$1" >&2 || die "python3 cannot make a venv: install python3-venv"
  "$1/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt >&2 || die "pip could not install testbed/requirements.txt"
}

fill_node() { # DIR
  say "installing $TSX into the cache (about 5 s)"
  mkdir -p "$1"
  npm install --silent --no-audit --no-fund --no-package-lock --prefix "$1" "$TSX" >&2 || die "npm could not install $TSX"
}

case ${1-} in
  python)
    dir=$TESTBED_CACHE/python-$(sha256sum requirements.txt | cut -c1-12)
    into "$dir" fill_python "$dir"
    echo "$dir/bin" ;;
  node)
    dir=$TESTBED_CACHE/$TSX
    into "$dir" fill_node "$dir"
    echo "$dir/node_modules/.bin" ;;
  *) die "say python or node" ;;
esac
