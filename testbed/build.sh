#!/usr/bin/env bash
# testbed/build.sh NAME...   builds what is missing into the cache; prints the directory of the binaries
#   NAME: etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy helm coredns pause
#         helm-unittest promtool prometheus prometheus-operator-crds.yaml (a file: the resources that a ServiceMonitor is one of)
#         source-controller kustomize-controller (Flux's), and programs of our own: kstatus argocd-lua router git-http
# If KUBEBUILDER_ASSETS is set, that directory is taken as it is, and nothing is built.
set -euo pipefail
cd "$(dirname "$0")"
. ./lib.sh

if [ -n "${KUBEBUILDER_ASSETS-}" ]; then
  for name; do
    [ -e "$KUBEBUILDER_ASSETS/$name" ] || die "KUBEBUILDER_ASSETS is $KUBEBUILDER_ASSETS, which has no $name; unset it, and it is built"
  done
  echo "$KUBEBUILDER_ASSETS"
  exit
fi

version() { awk -v m="$2" '$1 == m { print $2 } $1 == "require" && $2 == m { print $3 }' "$1/go.mod"; } # DIR MODULE

# module NAME: the directory of the Go module that NAME is built from
module() {
  case $1 in
    etcd | coredns | helm | helm-unittest | kstatus | argocd-lua | router | git-http) echo "$1" ;;
    prometheus | promtool) echo prometheus ;;
    prometheus-operator-crds.yaml) echo prometheus-operator ;;
    source-controller | kustomize-controller) echo "flux-${1%-controller}" ;;
    *) echo kubernetes ;;
  esac
}

# recipe NAME OUTPUT: builds NAME as OUTPUT
recipe() {
  local name=$1 out=$2 dir package ldflags='-s -w' tags=
  local k8s helm minor v=k8s.io/component-base/version
  k8s=$(version kubernetes k8s.io/kubernetes)
  minor=${k8s#v1.}; minor=${minor%%.*}
  dir=$(module "$name")
  case $name in
    etcd) package=go.etcd.io/etcd/server/v3 ;;
    coredns) package=github.com/coredns/coredns ;;
    kstatus | argocd-lua | router | git-http) package=. ;;
    source-controller | kustomize-controller) package=github.com/fluxcd/$name ;;
    helm)
      helm=$(version helm helm.sh/helm/v4)
      package=helm.sh/helm/v4/cmd/helm
      ldflags+=" -X helm.sh/helm/v4/internal/version.version=$helm" ;;
    helm-unittest) package=github.com/helm-unittest/helm-unittest/cmd/helm-unittest ;;
    prometheus | promtool) # without the tags: every cloud's SDK
      package=github.com/prometheus/prometheus/cmd/$name
      tags=remove_all_sd,enable_kubernetes_sd ;;
    prometheus-operator-crds.yaml) # nothing to compile: the module brings them along
      dir=$(go -C "$dir" mod download -json github.com/prometheus-operator/prometheus-operator | jq -er .Dir)
      for package in servicemonitors podmonitors prometheusrules; do
        cat "$dir/example/prometheus-operator-crd/monitoring.coreos.com_$package.yaml"
      done >"$out"
      return ;;
    pause) # no Go: the C program that holds a pod's namespaces
      dir=$(go -C kubernetes list -m -f '{{.Dir}}' k8s.io/kubernetes)
      cc -Os -static -s -o "$out" "$dir/build/pause/linux/pause.c"
      return ;;
    *) # without the version, /version would say v0.0.0
      package=k8s.io/kubernetes/cmd/$name
      ldflags+=" -X $v.gitVersion=$k8s -X $v.gitMajor=1 -X $v.gitMinor=$minor -X $v.gitCommit=modules -X $v.gitTreeState=clean" ;;
  esac
  go -C "$dir" build -mod=readonly -trimpath -buildvcs=false -tags "$tags" -ldflags "$ldflags" -o "$out" "$package"
}

cold_time() { # NAME: what a person with empty Go caches and 2 idle cores waits, measured in this order; busy cores take twice that
  case $1 in
    etcd) echo '1 min' ;;
    kube-apiserver) echo '5 min' ;;
    kube-controller-manager) echo '2 min' ;;
    helm | coredns) echo '2.5 min' ;;
    prometheus) echo '3 min' ;;
    helm-unittest) echo '1 min' ;;
    pause) echo '1 s' ;;
    argocd-lua | router | git-http) echo '5 s' ;;
    source-controller | kustomize-controller) echo '4 min' ;;
    *) echo '30 s' ;;
  esac
}

# key_of MODULE: what is built from it is good while this is the same. Each module has a key of its own, so that a change in a
# program of ours does not build Kubernetes again. `declare -f` prints a function without its comments, so that a word changed
# in one builds nothing.
key_of() {
  { cat "$1"/go.mod "$1"/go.sum; [ ! -e "$1/main.go" ] || cat "$1/main.go"; declare -f version module recipe; } |
    sha256sum | cut -c1-12
}

# Everything is built once into `parts`, under its key, and has its plain name in a directory for this combination of keys.
parts=$TESTBED_CACHE/parts
keys=$(for go_mod in ./*/go.mod; do key_of "$(dirname "$go_mod")"; done | sha256sum | cut -c1-12)
bin=$TESTBED_CACHE/$(version kubernetes k8s.io/kubernetes)-$keys
mkdir -p "$parts" "$bin"

missing=()
for name; do [ -e "$bin/$name" ] || missing+=("$name"); done
if [ ${#missing[@]} != 0 ]; then
  exec 9>"$parts/.lock"
  flock --nonblock 9 || { say "waiting for another build into $parts"; flock 9; }    # two runs at once build once
  use_go
  for name in "${missing[@]}"; do
    part=$name-$(key_of "$(module "$name")")
    if [ ! -e "$parts/$part" ]; then
      say "building $name (cold: about $(cold_time "$name"); again: seconds)"
      started=$SECONDS
      recipe "$name" "$parts/.$part" >&2
      mv "$parts/.$part" "$parts/$part"                    # so that half a file never has the name
      say "built $name in $((SECONDS - started)) s"
    fi
    ln -sfn "../parts/$part" "$bin/$name"
  done
fi
echo "$bin"
