#!/usr/bin/env bash
# testbed/deny.sh [CHECK...]   cargo-deny over all dependencies, by the rules of deny.toml (default: bans licenses sources)
#
# cargo-deny is installed by name, at this version, into the cache; crates.io's checksums and its own lock file vouch for it.
# `advisories` is a check like the others, but needs RustSec's database, which is fetched with git from GitHub: where that can
# be reached, `make deny CHECKS=advisories` asks it.
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh

VERSION=0.20.2

tool=$TESTBED_CACHE/cargo-deny@$VERSION
if [ ! -x "$tool/bin/cargo-deny" ]; then
  say "installing cargo-deny $VERSION into the cache (about 3 min)"
  work=$(mktemp -d "${TMPDIR:-/tmp}/chronos-deny.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  CARGO_TARGET_DIR=$work cargo install --quiet --locked --root "$tool" "cargo-deny@$VERSION"
fi
[ $# != 0 ] || set -- bans licenses sources
"$tool/bin/cargo-deny" --all-features --locked --workspace check "$@"
