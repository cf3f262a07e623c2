#!/usr/bin/env bash
# testbed/image.sh [TAG]   builds the static program and the image localhost/chronos:TAG (default: the version), checks both
#
# The engine is the first that works of docker, podman, buildah and umoci (IMAGE_ENGINE names one). The first three keep the
# image in their store; umoci, which needs neither a daemon nor a store, leaves dist/chronos-TAG.oci.tar, an archive that
# `podman load`, `ctr images import` and `skopeo copy oci-archive:…` read. Either way the image is what Dockerfile says.
#
# Checked on the files of the finished image, not on what went in: the program is static; the list of crates that it was built
# from can be read back from it; it runs with a read-only root, as the image's user, with nothing but the image's files.
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh

AUDITABLE=0.7.7        # cargo-auditable: writes the list of crates into the program
START_RUNS=7           # the median of so many starts is told
START_SECONDS=30       # a start takes 50 ms
MIN_CRATES=100         # a list much shorter than Cargo.lock is no list

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
tag=${1:-$version}
name=localhost/chronos:$tag
[[ $tag =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] || die "'$tag' cannot be the tag of an image"

work=$(mktemp -d "${TMPDIR:-/tmp}/chronos-image.XXXXXX")
chmod 755 "$work"                                          # Postgres, as another user, has a directory in it
postgres_pid='' program_pid=''
clean_up() {
  local status=$?
  trap - EXIT
  local pid
  for pid in $program_pid $postgres_pid; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ---- the program ----

# Cargo keeps what it builds for a target apart from what it builds for itself; only so do the flags spare build scripts and
# procedural macros, which cannot be static.
triple=$(rustc -vV | sed -n 's/^host: //p')
program=${CARGO_TARGET_DIR:?make sets it}/$triple/release/chronosd

build_program() {
  local tools=$TESTBED_CACHE/cargo-auditable@$AUDITABLE flags_of_target
  flags_of_target=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$triple")_RUSTFLAGS
  if [ ! -x "$tools/bin/cargo-auditable" ]; then
    say "installing cargo-auditable $AUDITABLE into the cache (about 30 s)"
    CARGO_TARGET_DIR=$work/auditable cargo install --quiet --locked --root "$tools" "cargo-auditable@$AUDITABLE"
  fi
  [ -x "$program" ] || say "building the static program (cold: about 8 min; again: 2 min when Chronos changed)"
  env -u RUSTFLAGS PATH="$tools/bin:$PATH" "$flags_of_target=-C target-feature=+crt-static" \
    testbed/cargo.sh auditable build --quiet --release --locked --bin chronosd --target "$triple"
}

# The certificates are those of Debian's package, not what this machine trusts besides: a company's own authority has no
# place in an image.
certificates() {
  local found=(/usr/share/ca-certificates/mozilla/*.crt)
  [ -e "${found[0]}" ] || die "no CA certificates in /usr/share/ca-certificates/mozilla: install Debian's ca-certificates"
  cat "${found[@]}"
}

lay_out() { # dist/image is the image's root; the same commit gives the same bytes
  rm -rf dist/image
  mkdir -p dist/image/etc/ssl/certs
  install -m 755 "$program" dist/image/chronosd
  certificates >dist/image/etc/ssl/certs/ca-certificates.crt
  echo 'chronos:x:65532:65532:Chronos:/:/nonexistent' >dist/image/etc/passwd
  echo 'chronos:x:65532:' >dist/image/etc/group
  chmod -R u=rwX,go=rX dist/image
  find dist/image -exec touch --no-dereference --date="$created" {} +
}

# ---- the image ----

works() { # ENGINE: a client may be there without its daemon
  case $1 in
    docker) docker info >/dev/null 2>&1 && docker version --format '{{.Server.Version}}' >/dev/null 2>&1 ;;
    podman) podman info >/dev/null 2>&1 ;;
    buildah) buildah info >/dev/null 2>&1 ;;
    umoci) umoci --version >/dev/null 2>&1 ;;
    *) die "no engine '$1': there are docker, podman, buildah and umoci" ;;
  esac
}

choose_engine() {
  local candidate
  if [ -n "${IMAGE_ENGINE-}" ]; then
    works "$IMAGE_ENGINE" || die "IMAGE_ENGINE is $IMAGE_ENGINE, which does not work here"
    engine=$IMAGE_ENGINE
    return
  fi
  for candidate in docker podman buildah umoci; do
    if works "$candidate"; then engine=$candidate; return; fi
  done
  say "neither docker, podman, buildah nor umoci works here: the smallest of them is installed"
  testbed/setup.sh image
  engine=umoci
}

build_args=()
by_engine() { # COMMAND...: docker, podman and buildah take the same arguments
  "$@" --file Dockerfile --tag "$name" "${build_args[@]}" . >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; die "$1 could not build the image"; }
}

# by_umoci: the image that the Dockerfile describes, instruction by instruction
by_umoci() {
  local word rest one config=()
  while read -r word rest; do
    rest=${rest//\$VERSION/$version} rest=${rest//\$REVISION/$revision} rest=${rest//\$CREATED/$created}
    case $word in
      '' | '#'* | FROM | ARG) ;;
      COPY) [ "$rest" = 'dist/image/ /' ] || die "Dockerfile: COPY $rest: testbed/image.sh knows one directory, dist/image/" ;;
      ENV) config+=(--config.env "$rest") ;;
      USER) config+=(--config.user "$rest") ;;
      EXPOSE) for one in $rest; do config+=(--config.exposedports "$one"); done ;;
      ENTRYPOINT) while read -r one; do config+=(--config.entrypoint "$one"); done < <(jq -r '.[]' <<<"$rest") ;;
      CMD) while read -r one; do config+=(--config.cmd "$one"); done < <(jq -r '.[]' <<<"$rest") ;;
      LABEL) rest=${rest/=\"/=}; config+=(--config.label "${rest%\"}") ;;
      *) die "Dockerfile: $word is not known to testbed/image.sh" ;;
    esac
  done <Dockerfile
  archive=dist/chronos-$tag.oci.tar
  oci_archive "$work" dist/image "$tag" "$PWD/$archive" "$created" "${config[@]}"
}

# unpack: the files of the finished image as $work/root, its configuration as $work/config.json, its size as it is moved about
unpack() {
  local layer manifest save=$work/save root=$work/root
  mkdir "$save" "$root"
  case $engine in
    docker) docker save "$name" | tar -C "$save" -x ;;
    podman) podman save --format oci-archive "$name" | tar -C "$save" -x ;;
    buildah) buildah push --quiet "$name" "oci-archive:$work/saved.tar:$tag" >/dev/null; tar -C "$save" -xf "$work/saved.tar" ;;
    umoci) tar -C "$save" -xf "$archive" ;;
  esac
  manifest=$save/blobs/$(jq -r '.manifests[0].digest' "$save/index.json" | tr : /)
  # Docker puts an index of platforms between; the first is the image, the others are attestations.
  [ "$(jq 'has("manifests")' "$manifest")" = false ] || manifest=$save/blobs/$(jq -r '.manifests[0].digest' "$manifest" | tr : /)
  cp "$save/blobs/$(jq -r .config.digest "$manifest" | tr : /)" "$work/config.json"
  while read -r layer; do tar -C "$root" --no-same-owner -xf "$save/blobs/${layer/://}"; done < <(jq -r '.layers[].digest' "$manifest")
  moved=$(jq '[.layers[].size, .config.size] | add' "$manifest")
}

# ---- the checks ----

check_config() {
  local found
  found=$(jq -c '[.config.User, .config.Entrypoint, .config.Cmd, (.config.Env | index("CHRONOS_BIND=0.0.0.0") != null), .config.Labels["org.opencontainers.image.version"]]' "$work/config.json")
  [ "$found" = '["65532:65532",["/chronosd"],["run"],true,"'"$version"'"]' ] || die "the image's configuration is not what Dockerfile says: $found"
  found=$(cd "$work/root" && find . -type f | sort | paste -sd ' ')
  [ "$found" = './chronosd ./etc/group ./etc/passwd ./etc/ssl/certs/ca-certificates.crt' ] || die "the image holds other files than it should: $found"
}

check_static() {
  local headers libraries
  headers=$(readelf --program-headers "$work/root/chronosd") || die "readelf cannot read the program"
  libraries=$(readelf --dynamic "$work/root/chronosd") || die "readelf cannot read the program"
  ! grep -q INTERP <<<"$headers" || die "the program is not static: it asks for an interpreter"
  ! grep -q NEEDED <<<"$libraries" || die "the program is not static: it needs shared libraries"
}

# The list that scanners read (cargo audit bin, trivy, syft, grype): from the program in the image, and held against Cargo.lock.
check_crates() {
  objcopy --dump-section .dep-v0="$work/dep-v0" "$work/root/chronosd" "$work/dumped" || die "no list of crates in the program"
  python3 - "$work/dep-v0" Cargo.lock "$version" >"$work/crates" <<'PY'
import json, sys, tomllib, zlib
packages = json.loads(zlib.decompress(open(sys.argv[1], "rb").read()))["packages"]
locked = {(p["name"], p["version"]) for p in tomllib.load(open(sys.argv[2], "rb"))["package"]}
found = {(p["name"], p["version"]) for p in packages if p.get("kind", "runtime") == "runtime"}
unknown = found - locked
if unknown:
    sys.exit(f"crates in the program that Cargo.lock does not have: {sorted(unknown)}")
if ("chronos", sys.argv[3]) not in found:
    sys.exit("Chronos itself is not in the list of crates")
for name, version in sorted(found):
    print(name, version)
PY
  crates=$(wc -l <"$work/crates")
  [ "$crates" -ge "$MIN_CRATES" ] || die "only $crates crates in the program's list"
}

# in_image COMMAND...: as in a hardened container: the image's files alone, read-only, as its user, no environment; and /dev and
# /proc, which every container has
# shellcheck disable=SC2016  # expanded by the inner shell
in_image() { # exec: what runs has the pid of the shell that calls this, which is therefore always a shell of its own
  exec unshare --mount -- bash -c 'mount --bind "$1" "$1" && mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" &&
    mount -o remount,bind,ro "$1" && cd "$1" && shift && exec "$@"' in-image "$work/root" \
    env -i "${inside[@]}" "$(command -v chroot)" --userspec=65532:65532 --groups= . "$@"
}

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

check_run() {
  local said port begun i deadline
  inside=()
  if [ "$(id -u)" != 0 ]; then
    say "not root: that the program runs with a read-only root and as the image's user is not checked here"
    return
  fi
  mkdir "$work/root/dev" "$work/root/proc"
  said=$(in_image /chronosd --version)
  [ "$said" = "chronosd $version" ] || die "--version says '$said'"
  for ((i = 0; i < START_RUNS; i++)); do
    begun=$(now_ms); (in_image /chronosd --version >/dev/null); echo $(($(now_ms) - begun))
  done >"$work/version-ms"

  TESTBED_PARENT=$$ testbed/postgres.sh run "$work/postgres" >"$work/postgres.out" & postgres_pid=$!
  until [ -s "$work/postgres.out" ]; do
    ! gone "$postgres_pid" || die "Postgres has ended"
    pause 0.05
  done
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  inside=(CHRONOS_POSTGRES_URI="$(sed -n 's/^ready //p' "$work/postgres.out")/postgres" CHRONOS_ALLOW_UNSAFE_POSTGRES=true CHRONOS_BIND=127.0.0.1
    CHRONOS_PORT=0 CHRONOS_METRICS_PORT="$port" CHRONOS_ROLES='dispatch,api' CHRONOS_TOKEN=only-for-this-check
    CHRONOS_AGENT_AUTH_SECRET=only-for-this-check CHRONOS_WAKE_TOKEN=only-for-this-check)
  (in_image /chronosd migrate >"$work/migrate.log" 2>&1) || { cat "$work/migrate.log" >&2; die "chronosd migrate failed in the image"; }
  for ((i = 0; i < START_RUNS; i++)); do
    begun=$(now_ms) deadline=$((SECONDS + START_SECONDS))
    in_image /chronosd run >"$work/run.log" 2>&1 & program_pid=$!
    until answers "$port"; do
      if gone "$program_pid" || [ "$SECONDS" -ge "$deadline" ]; then cat "$work/run.log" >&2; die "the program did not start from the image"; fi
      pause 0.002
    done
    echo $(($(now_ms) - begun))
    until grep -q 'chronos .* runs' "$work/run.log"; do
      if gone "$program_pid" || [ "$SECONDS" -ge "$deadline" ]; then cat "$work/run.log" >&2; die "the program did not get to run"; fi
      pause 0.02
    done
    awk '/^VmRSS/ { print $2 }' "/proc/$program_pid/status" >"$work/resident"
    kill "$program_pid"
    wait "$program_pid" || die "the program did not stop cleanly: $(tail -n 3 "$work/run.log")"
    program_pid=''
  done >"$work/livez-ms"
}

# answers PORT: /livez says ok; without a process, which would take as long as the start itself
answers() {
  local status fd
  { exec {fd}<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
  printf 'GET /livez HTTP/1.0\r\n\r\n' >&"$fd"
  read -r -t 5 -u "$fd" status || status=''
  exec {fd}>&-
  [[ $status == *' 200 '* ]]
}

megabytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'; }

# ---- all of it ----

created=$(git log -1 --format=%cI 2>/dev/null || date --iso-8601=seconds)
created=$(date --utc --date="$created" +%Y-%m-%dT%H:%M:%SZ)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || revision+=-changed
build_args=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "CREATED=$created")

build_program
lay_out
choose_engine
case $engine in
  docker | podman) by_engine "$engine" build ;;
  buildah) by_engine buildah build ;;
  umoci) by_umoci ;;
esac
unpack
check_config
check_static
check_crates
check_run

echo "image        $name, by $engine${archive:+: $archive}"
echo "size         $(megabytes "$moved") to move about; the program $(megabytes "$(stat -c %s "$work/root/chronosd")"), static"
echo "crates       $crates, listed in the program itself (cargo audit bin, trivy and syft read them)"
if [ -s "$work/livez-ms" ]; then
  echo "start        $(median <"$work/livez-ms") ms until /livez answers, $(median <"$work/version-ms") ms for --version (median of $START_RUNS; read-only root, uid 65532)"
  echo "memory       $(awk '{ printf "%.0f MB", $1 / 1024 }' "$work/resident") resident once started"
fi
