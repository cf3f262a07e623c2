#!/usr/bin/env bash
# testbed/controlplane.sh run DIR     etcd + kube-apiserver on loopback, in the foreground, until told to stop
# testbed/controlplane.sh obey DIR    one that is broken and mended by words on stdin
# testbed/controlplane.sh up DIR      the same as run, in the background: returns when it is ready
# testbed/controlplane.sh down DIR    ends what `up` started
#
# Needs KUBEBUILDER_ASSETS, the directory that testbed/build.sh prints. DIR must not exist yet, or be empty; it is
# removed at the end. DIR/kubeconfig is the administrator's.
#
# `run` prints one line, `ready DIR/kubeconfig`, once the API server serves. It ends on TERM, INT or HUP, when the
# process that started it is gone, or with status 1 and the last log lines when etcd or the API server dies. Environment:
#   APISERVER_EXTRA_ARGS   more flags for kube-apiserver, separated by spaces
#   TESTBED_PARENT         pid of the process that started us. Without it a starter that dies in our first milliseconds,
#                          before we know who it was, goes unnoticed.
#
# `obey` says `ready`, too, and then reads lines and answers each with one line. It ends, too, with its stdin, and with
# status 1 at a word that makes no sense, such as one for a part that is not there.
#   kill PART           SIGKILL; PART is apiserver or etcd                          killed PART
#   start PART          the same data on the same port; waits until it serves       ready DIR/kubeconfig
#   freeze PART         SIGSTOP: connections stay open and nobody answers           frozen PART
#   thaw PART           SIGCONT                                                     thawed PART
#   compact             etcd forgets its history. The API server remembers some of  compacted REVISION
#                       its own: kill and start it, and a watch from before is told 410.
#   snapshot NAME       copies what etcd would come up with if it were killed now   saved NAME
#   restore NAME        kills both, and starts them with what was copied            ready DIR/kubeconfig
# An API server that is frozen or has no etcd is not waited for: `start etcd` is answered when etcd serves.
#
# Who ends whom, so that nothing outlives a test run, however it dies:
#   starter gone     -> we see that we have another parent, end both children and remove DIR
#   we are SIGKILLed -> the kernel kills both children (their parent-death signal); only DIR is left
# We do not ask for a parent-death signal ourselves: it comes when the *thread* that started us ends, and a Rust test
# starts us from a thread that ends with the test, while others still use the control plane.
set -euo pipefail
cd_from=$PWD
cd "$(dirname "$0")"
. ./lib.sh
self=$PWD/controlplane.sh
cd "$cd_from"

READY_SECONDS=120      # 3 s on an idle machine; 2 cores busy compiling take much longer
ATTEMPTS=5             # starts with another port when someone else took the one we chose

usage() { die "usage: controlplane.sh run|obey|up|down DIR"; }

# DIR is ours if we marked it. Everything else is refused: at the end it is removed.
is_ours() { [ -e "$dir/.controlplane" ]; }
alive() { # is a `run` of DIR alive? The name is compared because its pid may be another program's by now.
  local pid; pid=$(cat "$dir/.controlplane" 2>/dev/null) && [ -n "$pid" ] && ! gone "$pid" &&
    grep -qsF controlplane.sh "/proc/$pid/cmdline"
}
claim_dir() {
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  ! alive || die "a control plane is running in $dir: controlplane.sh down $dir"
  if is_ours; then rm -rf "$dir"; mkdir "$dir"; fi         # left by one that was SIGKILLed
  [ -z "$(ls -A "$dir")" ] || die "$dir is not empty and not a control plane's: choose another directory"
  echo $$ >"$dir/.controlplane"
}

etcd_pid='' apiserver_pid=''
stop() { # PART...: SIGKILL, because it is quick, and because it is the worst that can happen to data that is kept
  local part pid
  for part; do
    pid=${part}_pid
    [ -z "${!pid}" ] || kill -KILL "${!pid}" 2>/dev/null || true
  done
  for part; do
    pid=${part}_pid
    [ -z "${!pid}" ] || wait "${!pid}" 2>/dev/null || true
    printf -v "$pid" %s ''                                  # so that it is not taken for one that died by itself
  done
}

# The port is below those that the kernel gives to outgoing connections and to programs that ask for any port, so only
# another control plane can take it between this look and the API server's bind.
free_port() {
  for _ in {1..100}; do
    port=$((20000 + RANDOM % 12000))
    (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
  done
  die "no free port between 20000 and 32000"
}

start_etcd() {
  # etcd needs no port: it listens on sockets in DIR, named relative to it because a socket's path may be only 107 long.
  # It need not wait for the disk either: what a process has written outlives the process, and the machine does not die.
  start etcd "$bin/etcd" --data-dir=etcd --unsafe-no-fsync --log-level=warn \
    --listen-client-urls=unix://client:0 --advertise-client-urls=unix://client:0 \
    --listen-peer-urls=unix://peer:0 --initial-advertise-peer-urls=unix://peer:0 --initial-cluster=default=unix://peer:0
}

start_apiserver() {
  local extra
  read -r -a extra <<<"${APISERVER_EXTRA_ARGS-}"
  start apiserver "$bin/kube-apiserver" --etcd-servers=unix://client:0 --cert-dir=certs \
    --bind-address=127.0.0.1 --secure-port="$port" --advertise-address=127.0.0.1 --endpoint-reconciler-type=none \
    --service-cluster-ip-range=10.0.0.0/24 --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file=sa.key --service-account-signing-key-file=sa.key \
    --authorization-mode=RBAC --token-auth-file=tokens.csv --disable-admission-plugins=ServiceAccount \
    ${extra[@]+"${extra[@]}"}
}

begin() { # both, from nothing, on a port that is free
  free_port
  rm -rf etcd certs
  start_etcd
  start_apiserver
}

# dead: has a child died that was not told to? Its name is then in $died.
dead() {
  for died in etcd apiserver; do
    local pid=${died}_pid
    [ -z "${!pid}" ] || ! gone "${!pid}" || return 0
  done
  return 1
}

fail_with_log() {
  say "$died died; the end of its log:"
  tail -n 15 "$died.log" >&2
  exit 1
}

apiserver_serves() {
  [ "$(curl -s --max-time 2 --cacert certs/apiserver.crt -H "Authorization: Bearer $token" "https://127.0.0.1:$port/readyz")" = ok ]
}

# etcd's own API, in JSON: keys are in base64, numbers are texts.
ask_etcd() { curl -sS --fail --max-time 20 --unix-socket client:0 "http://etcd$1" "${@:2}"; } # PATH [OPTION OF CURL]...
etcd_serves() { ask_etcd /health 2>/dev/null | jq -e '.health == "true"' >/dev/null 2>&1; }

wait_for() { # PART: until it serves
  local part=$1 deadline=$((SECONDS + READY_SECONDS))
  until "${part}_serves"; do
    ! dead || return 1
    if [ "$SECONDS" -ge "$deadline" ]; then say "not ready after $READY_SECONDS s"; died=$part; fail_with_log; fi
    ! starter_gone || exit 1
    pause 0.1
  done
}

serve() {
  local attempt=1
  begin
  until wait_for apiserver; do
    if [ "$attempt" -ge "$ATTEMPTS" ] || ! grep -qs 'address already in use' "$died.log"; then fail_with_log; fi
    attempt=$((attempt + 1))
    stop apiserver etcd
    begin
  done
  cat >.kubeconfig <<KUBECONFIG
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:$port", certificate-authority: "$dir/certs/apiserver.crt"}}]
users: [{name: u, user: {token: $token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
KUBECONFIG
  mv .kubeconfig kubeconfig                                 # whoever sees it sees all of it
  echo "ready $dir/kubeconfig"
}

run() { # run|obey
  local begun='' words
  starter=${TESTBED_PARENT:-$PPID}
  ! starter_gone || die "process $starter, which is said to have started this one, is gone"
  bin=$(cd "${KUBEBUILDER_ASSETS:?is not set: testbed/build.sh etcd kube-apiserver prints it}" && pwd)
  umask 077                                                 # DIR holds the administrator's token
  claim_dir
  trap 'stop apiserver etcd; cd /; rm -rf "$dir"' EXIT
  trap 'exit 0' TERM INT HUP
  trap 'exit 1' PIPE                                        # nobody reads `ready`: the starter is gone
  cd "$dir"
  token=$(openssl rand -hex 16)
  echo "$token,admin,admin,system:masters" >tokens.csv
  openssl genrsa -out sa.key 2048 2>/dev/null
  serve
  until starter_gone && [ ! -e detached ]; do
    ! dead || fail_with_log
    if [ "$1" = run ]; then
      pause 0.2
    elif IFS= read -r -t 0.2 words; then
      obey "$begun$words"
      begun=''
    elif [ $? -le 128 ]; then                               # not for want of time: the end
      exit 0
    else
      begun+=$words                                         # time was up in the middle of a line
    fi
  done
}

# ---- words of `obey` ----

obey() { # WORDS, understood only if the part they are for is there, or is not
  case "${etcd_pid:+E}${apiserver_pid:+A} $1" in
    E*' kill etcd') stop etcd; echo 'killed etcd' ;;
    *A' kill apiserver') stop apiserver; echo 'killed apiserver' ;;
    ' start etcd' | 'A start etcd') start_etcd; again etcd ;;
    'E start apiserver') start_apiserver; again apiserver ;;
    *A' freeze apiserver') kill -STOP "$apiserver_pid"; echo 'frozen apiserver' ;;
    *A' thaw apiserver') kill -CONT "$apiserver_pid"; echo 'thawed apiserver' ;;
    E*' freeze etcd') kill -STOP "$etcd_pid"; echo 'frozen etcd' ;;
    E*' thaw etcd') kill -CONT "$etcd_pid"; echo 'thawed etcd' ;;
    E*' compact') compact ;;
    E*' snapshot '*) snapshot "${1#snapshot }" ;;
    *' restore '*) restore "${1#restore }" ;;
    *) die "cannot obey '$1'" ;;
  esac
}

again() { # PART
  wait_for "$1" || fail_with_log
  echo "ready $dir/kubeconfig"
}

compact() {
  local revision
  # A key that the API server does not look at: its revision is a new one, and etcd refuses to compact twice at the same.
  revision=$(ask_etcd /v3/kv/put -d '{"key": "AA=="}' | jq -er .header.revision) || die "etcd does not tell its revision"
  # physical: answered when the old revisions are gone, not when that is planned.
  ask_etcd /v3/kv/compaction -d "{\"revision\": \"$revision\", \"physical\": true}" >/dev/null || die "etcd does not compact"
  echo "compacted $revision"
}

snapshot() { # NAME
  local name=$1
  [[ $name =~ ^[a-z0-9-]+$ ]] || die "cannot name a snapshot '$name'"
  mkdir -p snapshots
  rm -rf "snapshots/$name"
  # Nothing is written while it is copied. Its threads stop one by one; the copy waits for the last of them.
  kill -STOP "$etcd_pid"
  while cat /proc/"$etcd_pid"/task/*/status | grep '^State:' | grep -qv '^State:.T'; do pause 0.01; done
  cp -a etcd "snapshots/$name"
  kill -CONT "$etcd_pid"
  echo "saved $name"
}

restore() { # NAME
  [[ $1 =~ ^[a-z0-9-]+$ && -d snapshots/$1 ]] || die "there is no snapshot '$1'"
  stop apiserver etcd
  rm -rf etcd
  cp -a "snapshots/$1" etcd
  start_etcd
  start_apiserver
  again apiserver
}

# `up` is a `run` that we start, and let go once it is ready: killed before that, we take it with us.
up() {
  local line
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  # It gets a pipe for stderr too: with ours it would keep a caller waiting that reads our output to its end.
  exec {out}< <(TESTBED_PARENT='' exec setsid "$self" run "$dir" </dev/null 2>&1)
  while read -r line <&"$out"; do
    if [ "$line" = "ready $dir/kubeconfig" ]; then touch "$dir/detached"; return; fi
    echo "$line" >&2
  done
  exit 1
}

down() {
  [ -d "$dir" ] || return 0
  dir=$(cd "$dir" && pwd)
  is_ours || die "$dir is not a control plane's directory"
  if alive; then
    local pid; pid=$(cat "$dir/.controlplane")
    kill -TERM "$pid"
    for _ in {1..100}; do gone "$pid" && break; pause 0.1; done
    gone "$pid" || kill -KILL "$pid"
  fi
  rm -rf "$dir"
}

[ $# = 2 ] || usage
dir=$2
case $1 in
  run | obey) run "$1" ;;
  up) up ;;
  down) down ;;
  *) usage ;;
esac
