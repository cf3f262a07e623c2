#!/usr/bin/env bash
# testbed/cargo.sh ARGS...   cargo, in a CARGO_TARGET_DIR that several checkouts share
#
# One target directory for all checkouts means that a fresh clone compiles only Chronos and none of its dependencies.
# But Cargo names what it builds by the path within the checkout, and takes it as fresh while no source is newer. A file
# edited here at noon and a build of another checkout a minute later, and the tests of this one would run the other's
# code. So when the checkout changes, what Cargo remembers of the package itself (not of its dependencies) is forgotten.
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh

: "${CARGO_TARGET_DIR:?make sets it}"
mkdir -p "$CARGO_TARGET_DIR"
stamp=$CARGO_TARGET_DIR/.checkout

# Many at once from one checkout, or from another: shared lock while it is ours, exclusive lock to make it ours.
exec 9>>"$stamp.lock"
while flock --shared 9; [ "$(cat "$stamp" 2>/dev/null)" != "$PWD" ]; do
  flock --nonblock 9 || { say "waiting for cargo in $(cat "$stamp")"; flock 9; }
  find "$CARGO_TARGET_DIR" -maxdepth 4 -path '*/.fingerprint/chronos-*' -prune -exec rm -rf {} +
  echo "$PWD" >"$stamp"
done
unset MAKEFLAGS MFLAGS                                     # `make -j` names a job server in them that is not open to us
cargo "$@" 9>&-                                            # not to be inherited by what a test leaves running
