#!/usr/bin/env bash
# testbed/setup.sh GROUP...   installs the Debian packages that are missing and checks the Rust toolchain
#   demo      what `make demo` needs
#   test      what `make test` and `make lint` need
#   image     what `make image` needs besides where neither docker, podman nor buildah works
#   cluster   what testbed/cluster.sh needs besides
#   fuzz      what `make fuzz` needs besides
#   peers     what `make bench-peers` needs besides
# When nothing is missing it changes nothing and needs neither root nor the network.
set -euo pipefail
cd "$(dirname "$0")"
. ./lib.sh

RUST_WANTED=1.95

packages() { # GROUP: its Debian packages
  case $1 in
    demo) echo bash ca-certificates curl findutils gcc git jq libc6-dev make openssl postgresql procps python3 python3-venv util-linux ;;
    test) echo "$(packages demo)" diffutils faketime iproute2 shellcheck ;;
    image) echo umoci ;;
    # iptables: the CNI plugin that masquerades the pods' addresses calls it.
    cluster) echo containerd containernetworking-plugins iptables nftables runc umoci ;;
    fuzz) echo g++ ;;                                      # libFuzzer is C++
    peers) echo postgresql-client ;;
    *) die "no group '$1': there are demo, test, image, cluster, fuzz and peers" ;;
  esac
}

installed() { [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_packages() { # PACKAGE...
  local dropin install=(apt-get install -y --no-install-recommends "$@")
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    say "these packages are missing and only root can install them. Run as root:"
    say "    apt-get update && ${install[*]}"
    exit 1
  fi
  say "installing $*"
  # Debian's postgresql makes a cluster and starts it on port 5432. We run our own servers elsewhere, so on a machine
  # that never had PostgreSQL we ask for none while we install, and leave no setting behind.
  if [[ " $* " == *" postgresql "* ]] && ! installed postgresql-common; then
    dropin=/etc/postgresql-common/createcluster.d/chronos-testbed.conf
    as_root mkdir -p "${dropin%/*}"
    echo 'create_main_cluster = false' | as_root tee "$dropin" >/dev/null
    # shellcheck disable=SC2064  # the name as it is now: the variable is gone by then
    trap "as_root rm -f '$dropin'; as_root rmdir --ignore-fail-on-non-empty '${dropin%/*}'" EXIT
  fi
  as_root apt-get update >&2
  # The timeout: another apt may be at work, and waiting beats failing.
  as_root env DEBIAN_FRONTEND=noninteractive "${install[@]}" -o DPkg::Lock::Timeout=300 >&2
}

check_packages() { # GROUP...
  local group package list missing=()
  for group; do
    list=$(packages "$group")
    if ! command -v dpkg-query >/dev/null; then
      say "not a Debian-like machine: see for yourself that it has what these packages give: $list"
      continue
    fi
    for package in $list; do installed "$package" || missing+=("$package"); done
  done
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

# Rust is the one thing that we do not install: Debian's is older, and a second toolchain would shadow the person's own.
check_rust() {
  local tool found
  for tool in rustc cargo; do
    found=$($tool --version 2>/dev/null | awk '{ print $2 }' || true)
    at_least "$found" "$RUST_WANTED" || die "$tool ${found:-is missing}: Chronos needs Rust $RUST_WANTED or newer. With rustup:" \
      "rustup toolchain install stable (Debian's own Rust is too old)"
  done
  cargo fmt --version >/dev/null 2>&1 || die "rustfmt is missing. With rustup: rustup component add rustfmt"
  cargo clippy --version >/dev/null 2>&1 || die "clippy is missing. With rustup: rustup component add clippy"
}

# Node comes with npm from some sources and without it from Debian's: what counts is that both are there.
check_node() {
  local missing=()
  command -v node >/dev/null || missing+=(nodejs)
  command -v npm >/dev/null || missing+=(npm)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

# The same for Java: any JDK of 17 or newer will do.
check_java() {
  local missing=()
  command -v javac >/dev/null || missing+=(default-jdk-headless)
  command -v mvn >/dev/null || missing+=(maven)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

# pg_cron, where it can be had for the newest Postgres here: nobody but `make bench-peers PEER=pg-cron` misses it.
check_cron() {
  local server package
  server=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)
  [ -x "$server" ] && command -v apt-cache >/dev/null || return 0
  package=postgresql-$(cut -d / -f 5 <<<"$server")-cron
  installed "$package" || ! apt-cache show "$package" >/dev/null 2>&1 || install_packages "$package"
}

check_packages "$@"
case " $* " in *' test '*) check_node ;; esac
case " $* " in *' peers '*) check_java; check_cron ;; esac
check_rust
