#!/usr/bin/env bash
# testbed/cluster.sh run DIR                       a cluster of one real node, in the foreground, until told to stop
# testbed/cluster.sh load DIR NAME:TAG FILE PATH   puts an image of one static program into it, FILE as PATH
# testbed/cluster.sh import DIR NAME ARCHIVE       puts the image of an OCI archive into it, as NAME with the archive's tag
# testbed/cluster.sh down DIR                      clears away what a `run` left that was killed with SIGKILL
#
# Needs root and KUBEBUILDER_ASSETS, the directory that testbed/build.sh prints, with etcd kube-apiserver kubectl
# kube-controller-manager kube-scheduler kubelet kube-proxy coredns pause; and the Debian packages of group `cluster`.
#
# The node lives in a network namespace of its own, chronos0 (or chronos1 … if somebody has that already), at 10.77.0.2. The
# machine is 10.77.0.1 to it: a Postgres that listens there is one outside the cluster. `run` prints one line,
# `ready DIR/kubeconfig`, when the node takes pods; DIR/env has the names and addresses. It ends on TERM, INT or HUP, when the
# process that started it is gone (TESTBED_PARENT: its pid), or with status 1 when a part of the cluster dies. DIR must not
# exist yet, or be empty or left over; its path must be short, as there are sockets in it. It is removed at the end.
#
# What is cleared away, always: the processes, the pods' mounts, the network namespaces and interfaces, the cgroups, DIR. What a
# SIGKILLed `run` leaves are the pods (its own children the kernel kills): `down` or the next `run` in that DIR finds them by
# the cgroup and by the socket that their shims name, and no others.
set -euo pipefail
cd_from=$PWD
cd "$(dirname "$0")"
. ./lib.sh
cd "$cd_from"

READY_SECONDS=180      # 6 s on an idle machine; 2 cores busy compiling take much longer
STOP_SECONDS=20        # how long a part may take to end by itself
PARTS=(etcd apiserver containerd kcm scheduler kubelet proxy coredns)
CGROUPS=/sys/fs/cgroup

usage() { die "usage: cluster.sh run DIR | load DIR NAME:TAG FILE PATH | import DIR NAME ARCHIVE | down DIR"; }

# ---- whose it is ----

is_ours() { [ -e "$dir/.cluster" ]; }
alive() { # is a `run` of DIR alive? The name is compared because its pid may be another program's by now.
  local pid
  pid=$(cat "$dir/.cluster" 2>/dev/null) && [ -n "$pid" ] && ! gone "$pid" && grep -qsF cluster.sh "/proc/$pid/cmdline"
}
claim_dir() {
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  ! alive || die "a cluster is running in $dir"
  ! is_ours || clear_away
  mkdir -p "$dir"
  [ -z "$(ls -A "$dir")" ] || die "$dir is not empty and not a cluster's: choose another directory"
  [ ${#dir} -le 60 ] || die "$dir: the path is too long for the sockets in it: choose one of at most 60 characters"
  echo $$ >"$dir/.cluster"
}

# names NUMBER: everything that tells this cluster from another on the machine
names() {
  ns=chronos$1 gw=10.77.$1.1 ip=10.77.$1.2 pods=10.245.$1
  in=(nsenter --net="/run/netns/$ns")                      # not `ip netns exec`: it mounts /sys anew, and kubelet loses its cgroups
}
# What our network namespace is by itself: the name may be another cluster's by now, after a reboot say.
netns_id() { echo "$(</proc/sys/kernel/random/boot_id) $(stat -Lc %i "/run/netns/$ns")"; }
take_names() { # the first number that nobody has: making the namespace is what takes it
  local n
  for n in {0..9}; do
    names "$n"
    ip netns add "$ns" 2>/dev/null || continue
    printf '%s\n' "number=$n" "ns=$ns" "gw=$gw" "ip=$ip" "pods=$pods" "containerd=$dir/containerd.sock" "kubeconfig=$dir/kubeconfig" "netns=$(netns_id)" >"$dir/env"
    return
  done
  die "network namespaces chronos0 to chronos9 are all taken"
}

# ---- up ----

network() {
  ip link add "v$ns" type veth peer name eth0 netns "$ns"
  ip addr add "$gw/24" dev "v$ns"
  ip link set "v$ns" up
  "${in[@]}" ip addr add "$ip/24" dev eth0
  "${in[@]}" ip link set eth0 up
  "${in[@]}" ip link set lo up
  "${in[@]}" ip route add default via "$gw"
  "${in[@]}" sysctl -qw net.ipv4.ip_forward=1
}

cgroup_roots() { # one directory for the cgroups of the pods per hierarchy: a single one in version 2
  local procs
  if [ -e "$CGROUPS/cgroup.controllers" ]; then echo "$CGROUPS/$ns"; return; fi
  for procs in "$CGROUPS"/*/cgroup.procs; do echo "${procs%/*}/$ns"; done
}

# The pods as a whole are weighed against every single process outside: without this, whoever compiles beside us gets all but a
# sliver of the machine, and probes fail that no node of its own would fail.
weigh() {
  local root
  for root in $(cgroup_roots); do
    [ ! -w "$root/cpu.shares" ] || echo 20480 >"$root/cpu.shares"
    [ ! -w "$root/cpu.weight" ] || echo 2000 >"$root/cpu.weight"
  done
}

certificates() (
  mkdir pki
  cd pki
  key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
  certificate() { # NAME SUBJECT [SUBJECT_ALT_NAME]: and a kubeconfig for who has it
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" | openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" \
      -extfile <(printf 'keyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n%s\n' "${3:+subjectAltName=$3}") 2>/dev/null
    cat >"$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: testbed, cluster: {server: "https://$ip:6443", certificate-authority: $dir/pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $dir/pki/$1.crt, client-key: $dir/pki/$1.key}}]
contexts: [{name: testbed, context: {cluster: testbed, user: $1}}]
current-context: testbed
YAML
  }
  key ca
  openssl req -x509 -new -key ca.key -out ca.crt -days 365 -subj /CN=testbed-ca -addext keyUsage=critical,keyCertSign,cRLSign
  openssl genrsa -out sa.key 2048 2>/dev/null
  openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
  certificate apiserver /CN=kube-apiserver \
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1,IP:$ip"
  certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  certificate admin /O=system:masters/CN=admin
  certificate kcm /CN=system:kube-controller-manager
  certificate scheduler /CN=system:kube-scheduler
  certificate proxy /CN=system:kube-proxy
  certificate kubelet /O=system:nodes/CN=system:node:node1 "DNS:node1,IP:$ip"
  cp admin.kubeconfig ../kubeconfig
)

settings() { # the files that the parts read
  mkdir cni
  # restrict_oom_score_adj: a container host may lack CAP_SYS_RESOURCE, and runc then fails on a negative oom_score_adj
  cat >containerd.toml <<TOML
version = 2
root = "$dir/containerd/root"
state = "$dir/containerd/state"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
TOML
  cat >cni/10-bridge.conflist <<JSON
{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,
 "ipam":{"type":"host-local","dataDir":"$dir/ipam","ranges":[[{"subnet":"$pods.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
JSON
  # `---` first: a leading brace would be read as JSON. Image GC would remove images that were loaded by hand. Shutdown of pods
  # is not cut short by eviction: the machine's disk is shared with whoever builds on it.
  cat >kubelet.yaml <<YAML
---
{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, address: $ip, containerRuntimeEndpoint: "unix://$dir/containerd.sock",
 authentication: {x509: {clientCAFile: $dir/pki/ca.crt}, webhook: {enabled: true}, anonymous: {enabled: false}}, authorization: {mode: Webhook},
 tlsCertFile: $dir/pki/kubelet.crt, tlsPrivateKeyFile: $dir/pki/kubelet.key, cgroupDriver: cgroupfs, cgroupRoot: /$ns, failCgroupV1: false,
 failSwapOn: false, oomScoreAdj: 0, maxOpenFiles: 20000, evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%},
 imageGCHighThresholdPercent: 100, imageGCLowThresholdPercent: 99, imagePullCredentialsVerificationPolicy: NeverVerify,
 clusterDomain: cluster.local, clusterDNS: [$ip], podLogsDir: $dir/podlogs, volumePluginDir: $dir/volumeplugins}
YAML
  cat >Corefile <<COREFILE
.:53 {
  bind $ip
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $dir/pki/admin.kubeconfig testbed
  }
  cache 5
}
COREFILE
}

# start_in PART COMMAND...: in the node's network, in a session of its own, so that Ctrl-C reaches us alone and we end them in order
start_in() { local part=$1; shift; start "$part" setsid "${in[@]}" "$@"; }

# until_true PART COMMAND...: PART is what must not die meanwhile
until_true() {
  local part=$1 pid=${1}_pid; shift
  until "$@" >/dev/null 2>&1; do
    [ -z "$told" ] || exit 0
    ! gone "${!pid}" || fail_with_log "$part" died
    [ "$SECONDS" -lt "$deadline" ] || fail_with_log "$part" "is not ready after $READY_SECONDS s"
    pause 0.1
  done
}
fail_with_log() { say "$1 $2; the end of its log:"; tail -n 15 "$1.log" >&2 || true; exit 1; }

up() {
  local p=$dir/pki
  deadline=$((SECONDS + READY_SECONDS))
  network
  cgroup_roots | xargs mkdir -p
  weigh
  certificates
  settings
  start_in etcd "$bin/etcd" --data-dir="$dir/etcd" --unsafe-no-fsync --log-level=warn
  start_in apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address="$ip" --advertise-address="$ip" --secure-port=6443 \
    --tls-cert-file="$p/apiserver.crt" --tls-private-key-file="$p/apiserver.key" --client-ca-file="$p/ca.crt" \
    --kubelet-certificate-authority="$p/ca.crt" --kubelet-client-certificate="$p/kubelet-client.crt" --kubelet-client-key="$p/kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --service-account-key-file="$p/sa.pub" --service-account-signing-key-file="$p/sa.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local
  start_in containerd containerd -c "$dir/containerd.toml"
  until_true containerd ctr -a "$dir/containerd.sock" version
  load localhost/pause:1 "$bin/pause" /pause
  until_true apiserver curl -sf --cacert "$p/ca.crt" --cert "$p/admin.crt" --key "$p/admin.key" "https://$ip:6443/readyz"
  start_in kcm "$bin/kube-controller-manager" --kubeconfig="$p/kcm.kubeconfig" --authentication-kubeconfig="$p/kcm.kubeconfig" \
    --authorization-kubeconfig="$p/kcm.kubeconfig" --bind-address=127.0.0.1 --service-account-private-key-file="$p/sa.key" \
    --root-ca-file="$p/ca.crt" --cluster-signing-cert-file="$p/ca.crt" --cluster-signing-key-file="$p/ca.key" \
    --use-service-account-credentials --leader-elect=false --flex-volume-plugin-dir="$dir/volumeplugins"
  start_in scheduler "$bin/kube-scheduler" --kubeconfig="$p/scheduler.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false
  start_in kubelet "$bin/kubelet" --config="$dir/kubelet.yaml" --kubeconfig="$p/kubelet.kubeconfig" --hostname-override=node1 \
    --node-ip="$ip" --root-dir="$dir/kubelet" --cert-dir="$dir/kubelet-pki"
  start_in proxy "$bin/kube-proxy" --kubeconfig="$p/proxy.kubeconfig" --proxy-mode=nftables --cluster-cidr="$pods.0/24" \
    --hostname-override=node1 --conntrack-max-per-core=0 --oom-score-adj=0
  start_in coredns "$bin/coredns" -conf "$dir/Corefile"
  until_true kubelet "$bin/kubectl" --kubeconfig="$p/admin.kubeconfig" wait --for=condition=Ready node/node1 --timeout=5s
  until_true kcm "$bin/kubectl" --kubeconfig="$p/admin.kubeconfig" get serviceaccount default
}

# ---- images ----

load() { # NAME:TAG FILE PATH
  local build
  build=$(mktemp -d "$dir/image.XXXXXX")
  install -D -m 755 "$2" "$build/root$3"
  oci_archive "$build" "$build/root" "${1##*:}" "$build/image.tar" 1970-01-01T00:00:00Z --config.entrypoint "$3" --config.user 65532:65532
  import "${1%:*}" "$build/image.tar"
  rm -rf "$build"
}
import() { ctr -a "$dir/containerd.sock" -n k8s.io images import --base-name "$1" "$2" >/dev/null; } # NAME ARCHIVE

# ---- down ----

stop() { # PART...: children of ours
  local part pid end=$((SECONDS + STOP_SECONDS))
  for part; do pid=${part}_pid; [ -z "${!pid-}" ] || kill "${!pid}" 2>/dev/null || true; done
  for part; do
    pid=${part}_pid
    [ -n "${!pid-}" ] || continue
    until gone "${!pid}" || [ "$SECONDS" -ge "$end" ]; do pause 0.05; done
    kill -KILL "${!pid}" 2>/dev/null || true
    wait "${!pid}" 2>/dev/null || true
    printf -v "$pid" %s ''
  done
}

# pod_processes: those in the cluster's cgroups, and the shims that name its containerd
pod_processes() {
  local process root words=()
  for root in $(cgroup_roots); do
    [ ! -d "$root" ] || find "$root" -mindepth 2 -name cgroup.procs -exec cat {} + 2>/dev/null || true
  done
  for process in /proc/[0-9]*; do
    mapfile -d '' -t words 2>/dev/null <"$process/cmdline" || continue
    [[ ${words[0]-} == *containerd-shim* && " ${words[*]} " == *" $dir/containerd.sock "* ]] || continue
    echo "${process#/proc/}"
  done
}
end_pods() { # a shim could start something again: until none is left
  local pid left end=$((SECONDS + STOP_SECONDS))
  while :; do
    left=''
    for pid in $(pod_processes | sort -u); do
      gone "$pid" || { left+=" $pid"; kill -KILL "$pid" 2>/dev/null || true; }
    done
    [ -n "$left" ] || return 0
    [ "$SECONDS" -lt "$end" ] || { say "these processes of the cluster in $dir do not end:$left"; return 1; }
    pause 0.1
  done
}

mounted() { awk -v d="$dir/" 'index($2, d) == 1 { print $2 }' /proc/mounts | sort -r; }  # deepest first

# clear_away: everything but our own children, which are gone by now. DIR/env says which names were taken.
clear_away() {
  local number='' mount name root made
  [ ! -e "$dir/env" ] || number=$(sed -n 's/^number=//p' "$dir/env")
  if [ -n "$number" ]; then
    names "$number"
    if [ -e "/run/netns/$ns" ] && [ "$(sed -n 's/^netns=//p' "$dir/env")" != "$(netns_id)" ]; then
      say "$ns is another cluster's now: of $dir only the directory is removed"
      number=''
    fi
  fi
  if [ -n "$number" ]; then
    end_pods || true
    mounted | while read -r mount; do umount "$mount" 2>/dev/null || umount -l "$mount"; done
    # The pods' network namespaces have names that containerd made up: ours are those with an address of ours and no process.
    for name in $(ip netns list | awk '/^cni-/ { print $1 }'); do
      ip -n "$name" -4 -o addr show 2>/dev/null | grep -qF " $pods." || continue
      [ -n "$(ip netns pids "$name")" ] || ip netns del "$name" || true
    done
    ip netns del "$ns" 2>/dev/null || true                 # cni0 and the pods' ends go with it
    ip link del "v$ns" 2>/dev/null || true
    for root in $(cgroup_roots); do
      [ ! -d "$root" ] || find "$root" -depth -type d -exec rmdir {} + || say "could not remove $root"
    done
    # kubelet and CNI write there whatever they are told: taken away again if we were the first, and are the last.
    ip netns list | grep '^chronos[0-9]' >/dev/null || while read -r made; do rm -rf --one-file-system "$made"; done <"$dir/made"
  fi
  [ -z "$(mounted)" ] || { say "$dir is left: something is still mounted in it"; return 1; }
  rm -rf "$dir"
}

clean_up() { # the EXIT trap of `run`
  local status=$?
  trap - EXIT
  trap '' TERM INT HUP PIPE
  stop proxy kubelet coredns scheduler kcm
  [ ! -e "$dir/env" ] || end_pods || true                   # without it no name was taken, and these would be another cluster's
  stop containerd apiserver
  stop etcd
  cd /
  clear_away || status=1
  exit "$status"
}

run() {
  local part pid
  [ "$(id -u)" = 0 ] || die "the cluster needs root: network namespaces, mounts, cgroups"
  for part in containerd runc umoci nft iptables; do command -v "$part" >/dev/null || die "$part is missing: testbed/setup.sh cluster"; done
  starter=${TESTBED_PARENT:-$PPID}
  ! starter_gone || die "process $starter, which is said to have started this one, is gone"
  claim_dir
  trap clean_up EXIT
  # Not `exit`: bash would run the EXIT trap inside of the `read` of `pause` that the signal cut short, and crash.
  told=''
  trap 'told=yes' TERM INT HUP PIPE
  cd "$dir"
  for part in /var/lib/kubelet /var/lib/cni; do [ -e "$part" ] || echo "$part"; done >made
  names 0                                                   # so that the trap has names, whatever happens
  take_names
  up
  echo "ready $dir/kubeconfig"
  until [ -n "$told" ] || starter_gone; do
    for part in "${PARTS[@]}"; do
      pid=${part}_pid
      ! gone "${!pid}" || fail_with_log "$part" died
    done
    pause 0.3
  done
}

[ $# -ge 2 ] || usage
dir=$2
case "$1 $#" in
  'run 2') bin=${KUBEBUILDER_ASSETS:?is not set: testbed/build.sh prints it}; run ;;
  'load 5') is_ours || die "no cluster in $dir"; load "$3" "$4" "$5" ;;
  'import 4') is_ours || die "no cluster in $dir"; import "$3" "$4" ;;
  'down 2')
    [ -e "$dir" ] || exit 0
    dir=$(cd "$dir" && pwd)
    is_ours || die "$dir is not a cluster's"
    ! alive || die "a cluster is running in $dir: end the process $(cat "$dir/.cluster")"
    clear_away ;;
  *) usage ;;
esac
