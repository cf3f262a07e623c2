#!/usr/bin/env bash
# testbed/gauntlet.sh build       builds the rig, and chronosd with fail points and mutants (feature `mutants`)
# testbed/gauntlet.sh built ARGS  runs `gauntlet ARGS...` as it was built
# testbed/gauntlet.sh ARGS...     does both; `gauntlet.sh help` lists them
#
# The rig makes network namespaces and mounts, so it needs root; whoever is not root is asked for a password by sudo.
# GAUNTLET_OTHER is another build of chronosd by which replicas are replaced: a file, or git:REVISION, which is built; unset: the
# ordinary build of this tree.
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh

# As in the Makefile: `check` and `simulate` are for a person's own hand.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/chronos/target}
place=$CARGO_TARGET_DIR/gauntlet

# All builds are called target/debug/chronosd. They are put aside: cargo, which may be at work for the other tests meanwhile, changes that one.
aside() { # FILE NAME: by a rename, or one that runs could not be replaced
  cp "$1" "$place/$2.new"
  mv "$place/$2.new" "$place/$2"
}

build() {
  local rig
  mkdir -p "$place"
  testbed/cargo.sh build --quiet --locked --features mutants --bin chronosd
  aside "$CARGO_TARGET_DIR/debug/chronosd" mutants
  rig=$(testbed/cargo.sh test --locked --test gauntlet --no-run --message-format=json |
    jq -r 'select(.executable != null and .target.name == "gauntlet") | .executable')
  aside "$CARGO_TARGET_DIR/debug/chronosd" ordinary
  aside "$rig" gauntlet
  grep -q 'built with the feature' "$place/mutants" || die "$place/mutants has no fail points: was something else built meanwhile?"
}

# chronosd as it was at another revision. Kept by the commit's name: what was built once is not built again.
other() { # REVISION
  local commit tree
  commit=$(git rev-parse --verify --quiet "$1^{commit}") || die "GAUNTLET_OTHER: there is no revision $1 here"
  other=$place/other-$commit
  [ -x "$other" ] && return
  mkdir -p "$place"
  tree=$(mktemp -d)
  say "building chronosd as of $1"
  git worktree add --quiet --detach "$tree" "$commit"
  if "$tree/testbed/cargo.sh" build --quiet --locked --bin chronosd; then
    aside "$CARGO_TARGET_DIR/debug/chronosd" "other-$commit"
  fi
  git worktree remove --force "$tree"
  [ -x "$other" ] || die "chronosd as of $1 cannot be built"
}

# Before our own: the last to build is what cargo has at hand.
case ${GAUNTLET_OTHER:-} in
  git:*) other "${GAUNTLET_OTHER#git:}"; GAUNTLET_OTHER=$other ;;
esac

case ${1:-} in
  build) build; exit ;;
  built) shift ;;
  *) build ;;
esac

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die "the gauntlet makes network namespaces and mounts: run it as root"
  as_root=(sudo "--preserve-env=GAUNTLET_BINARY,GAUNTLET_OTHER,KUBEBUILDER_ASSETS")
fi
KUBEBUILDER_ASSETS=$(testbed/build.sh etcd kube-apiserver kubectl)
export KUBEBUILDER_ASSETS GAUNTLET_BINARY=$place/mutants GAUNTLET_OTHER=${GAUNTLET_OTHER:-$place/ordinary}
exec ${as_root[@]+"${as_root[@]}"} "$place/gauntlet" "$@"
