#!/usr/bin/env bash
# testbed/cluster.sh up DIR | load DIR NAME:TAG FILE PATH | down DIR     one real node in a network namespace
set -euo pipefail
cmd=$1 dir=$2 bin=${KUBEBUILDER_ASSETS:?}
ns=${NS:-chronos0} gw=${GW:-10.77.0.1} ip=${IP:-10.77.0.2}
in=(nsenter --net="/run/netns/$ns")
ctr=(ctr -a "$dir/containerd.sock" -n k8s.io)
gone() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }

start() { local n=$1; shift; setsid "${in[@]}" "$@" >"$dir/log/$n.log" 2>&1 </dev/null & echo $! >"$dir/run/$n.pid"; }
wait_for() { local n=$1; shift; until "$@" >/dev/null 2>&1; do gone "$(cat "$dir/run/$n.pid")" && { tail -5 "$dir/log/$n.log" >&2; exit 1; }; sleep 0.1; done; }
stop() {
  local n p
  for n; do [ ! -f "$dir/run/$n.pid" ] || kill "$(cat "$dir/run/$n.pid")" 2>/dev/null || true; done
  for n; do
    [ -f "$dir/run/$n.pid" ] || continue
    p=$(cat "$dir/run/$n.pid")
    for _ in $(seq 100); do gone "$p" && break; sleep 0.1; done
    gone "$p" || kill -9 "$p"
    rm "$dir/run/$n.pid"
  done
}

load() { # name:tag binary path-in-image : FROM-scratch image with one static binary
  local t tag=${1##*:}; t=$(mktemp -d)
  umoci init --layout "$t/oci"; umoci new --image "$t/oci:$tag"
  umoci insert --image "$t/oci:$tag" "$(realpath "$2")" "$3"
  umoci config --image "$t/oci:$tag" --config.entrypoint "$3" --config.user 65532:65532
  tar -C "$t/oci" -cf "$t/image.tar" .
  "${ctr[@]}" images import --base-name "${1%:*}" "$t/image.tar" >/dev/null
  rm -rf "$t"
}

pki() {
  mkdir -p "$dir/pki"; cd "$dir/pki"
  key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
  key ca; openssl req -x509 -new -key ca.key -out ca.crt -days 365 -subj /CN=testbed-ca -addext keyUsage=critical,keyCertSign,cRLSign
  openssl genrsa -out sa.key 2048 2>/dev/null; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
  cert() { # name subject [subjectAltName]
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" | openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" \
      -extfile <(printf 'keyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n%s\n' "${3:+subjectAltName=$3}") 2>/dev/null
    cat >"$1.kubeconfig" <<X
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$ip:6443", certificate-authority: $dir/pki/ca.crt}}]
users: [{name: u, user: {client-certificate: $dir/pki/$1.crt, client-key: $dir/pki/$1.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
X
  }
  cert apiserver /CN=kube-apiserver "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1,IP:$ip"
  cert kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  cert admin /O=system:masters/CN=admin
  cert kcm /CN=system:kube-controller-manager
  cert sched /CN=system:kube-scheduler
  cert proxy /CN=system:kube-proxy
  cert kubelet /O=system:nodes/CN=system:node:node1 "DNS:node1,IP:$ip"
  cd - >/dev/null
}

up() {
  local p=$dir/pki
  mkdir -p "$dir"/{log,run,cni}
  ip netns add "$ns"; ip link add "v$ns" type veth peer name eth0 netns "$ns"; ip addr add "$gw/24" dev "v$ns"; ip link set "v$ns" up
  "${in[@]}" ip addr add "$ip/24" dev eth0; "${in[@]}" ip link set eth0 up; "${in[@]}" ip link set lo up; "${in[@]}" ip route add default via "$gw"; "${in[@]}" sysctl -qw net.ipv4.ip_forward=1
  for c in /sys/fs/cgroup/*/cgroup.procs; do mkdir -p "${c%/*}/$ns"; done
  pki
  start etcd "$bin/etcd" --data-dir="$dir/etcd" --unsafe-no-fsync --log-level=warn
  start apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address="$ip" --advertise-address="$ip" --secure-port=6443 \
    --tls-cert-file="$p/apiserver.crt" --tls-private-key-file="$p/apiserver.key" --client-ca-file="$p/ca.crt" \
    --kubelet-certificate-authority="$p/ca.crt" --kubelet-client-certificate="$p/kubelet-client.crt" --kubelet-client-key="$p/kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --service-account-key-file="$p/sa.pub" --service-account-signing-key-file="$p/sa.key" --service-account-issuer=https://kubernetes.default.svc.cluster.local
  cat >"$dir/containerd.toml" <<X
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
X
  cat >"$dir/cni/10-bridge.conflist" <<X
{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,
 "ipam":{"type":"host-local","dataDir":"$dir/ipam","ranges":[[{"subnet":"10.245.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
X
  cat >"$dir/kubelet.yaml" <<X
---
{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, address: $ip, containerRuntimeEndpoint: "unix://$dir/containerd.sock",
 authentication: {x509: {clientCAFile: $p/ca.crt}, webhook: {enabled: true}, anonymous: {enabled: false}}, authorization: {mode: Webhook},
 tlsCertFile: $p/kubelet.crt, tlsPrivateKeyFile: $p/kubelet.key, cgroupDriver: cgroupfs, cgroupRoot: /$ns, failCgroupV1: false,
 failSwapOn: false, oomScoreAdj: 0, maxOpenFiles: 20000, evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%},
 imageGCHighThresholdPercent: 100, imageGCLowThresholdPercent: 99, imagePullCredentialsVerificationPolicy: NeverVerify,
 clusterDomain: cluster.local, clusterDNS: [$ip], podLogsDir: $dir/podlogs, volumePluginDir: $dir/volumeplugins}
X
  cat >"$dir/Corefile" <<X
.:53 {
  bind $ip
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $p/admin.kubeconfig x
  }
  cache 5
}
X
  start containerd containerd -c "$dir/containerd.toml"
  wait_for containerd "${ctr[@]}" version
  load localhost/pause:1 "$bin/pause" /pause
  wait_for apiserver curl -sf --cacert "$p/ca.crt" --cert "$p/admin.crt" --key "$p/admin.key" "https://$ip:6443/readyz"
  start kcm "$bin/kube-controller-manager" --kubeconfig="$p/kcm.kubeconfig" --authentication-kubeconfig="$p/kcm.kubeconfig" --authorization-kubeconfig="$p/kcm.kubeconfig" \
    --bind-address=127.0.0.1 --service-account-private-key-file="$p/sa.key" --root-ca-file="$p/ca.crt" --cluster-signing-cert-file="$p/ca.crt" \
    --cluster-signing-key-file="$p/ca.key" --use-service-account-credentials --leader-elect=false --flex-volume-plugin-dir="$dir/volumeplugins"
  start sched "$bin/kube-scheduler" --kubeconfig="$p/sched.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false
  start kubelet "$bin/kubelet" --config="$dir/kubelet.yaml" --kubeconfig="$p/kubelet.kubeconfig" --hostname-override=node1 --node-ip="$ip" --root-dir="$dir/kubelet" --cert-dir="$dir/kubelet-pki"
  start proxy "$bin/kube-proxy" --kubeconfig="$p/proxy.kubeconfig" --proxy-mode=nftables --cluster-cidr=10.245.0.0/24 --hostname-override=node1 --conntrack-max-per-core=0 --oom-score-adj=0
  [ ! -x "$bin/coredns" ] || start coredns "$bin/coredns" -conf "$dir/Corefile"
  wait_for kubelet "$bin/kubectl" --kubeconfig="$p/admin.kubeconfig" wait --for=condition=Ready node/node1 --timeout=30s
  wait_for kcm "$bin/kubectl" --kubeconfig="$p/admin.kubeconfig" get serviceaccount default
}

down() {
  stop proxy kubelet coredns sched kcm
  for t in $("${ctr[@]}" tasks ls -q 2>/dev/null); do "${ctr[@]}" tasks kill -a -s SIGKILL "$t" || true; done >/dev/null 2>&1
  for _ in $(seq 50); do "${ctr[@]}" tasks ls 2>/dev/null | grep -q RUNNING || break; sleep 0.1; done
  for t in $("${ctr[@]}" tasks ls -q 2>/dev/null); do "${ctr[@]}" tasks rm -f "$t" || true; done >/dev/null 2>&1
  stop containerd apiserver; stop etcd
  awk -v d="$dir/" 'index($2, d) == 1 { print $2 }' /proc/mounts | sort -r | while read -r m; do umount "$m" || umount -l "$m"; done
  for n in $(ip netns list | awk '/^cni-/ { print $1 }'); do
    ip -n "$n" -4 -o addr show 2>/dev/null | grep -q ' 10\.245\.0\.' || continue
    [ -n "$(ip netns pids "$n")" ] || ip netns del "$n" || true
  done
  ip netns del "$ns" 2>/dev/null || true; ip link del "v$ns" 2>/dev/null || true
  for c in /sys/fs/cgroup/*/"$ns"; do [ ! -d "$c" ] || find "$c" -depth -type d -exec rmdir {} +; done
  rm -rf "$dir"
}
case $cmd in up) up ;; down) down ;; load) load "$3" "$4" "$5" ;; esac
