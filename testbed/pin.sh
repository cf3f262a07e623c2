#!/usr/bin/env bash
# testbed/pin.sh KUBERNETES ETCD HELM COREDNS KSTATUS LUA HELM-UNITTEST PROMETHEUS PROMETHEUS-OPERATOR FLUX
#   e.g.  pin.sh 1.37.1 3.7.3 4.3.1 1.15.0 0.37.2 1.1.2 1.1.2 0.315.0 0.94.0 1.9.4
# Writes the go.mod and go.sum of each part. Run it to change a version; commit the result.
set -euo pipefail
cd "$(dirname "$0")"
. ./lib.sh
use_go
k=$1
begin() { mkdir -p "$1"; cd "$1"; rm -f go.mod go.sum; go mod init "testbed/$1" 2>/dev/null; go mod edit -go=1.26.0; }
(
  begin kubernetes
  go mod edit -require "k8s.io/kubernetes@v$k"
  upstream=$(go mod download -json "k8s.io/kubernetes@v$k" | jq -er .GoMod)
  # Kubernetes requires its own staging modules at v0.0.0; each is published as v0.MINOR.PATCH.
  go mod edit -json "$upstream" | jq -r '.Require[] | select(.Version == "v0.0.0") | .Path' |
    while read -r m; do go mod edit -replace "$m=$m@v0.${k#1.}"; done
  for c in kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy; do
    go get -tool "k8s.io/kubernetes/cmd/$c@v$k"
  done
)
(begin etcd; go get -tool "go.etcd.io/etcd/server/v3@v$2")
(begin helm; go get -tool "helm.sh/helm/v4/cmd/helm@v$3")
(begin coredns; go get -tool "github.com/coredns/coredns@v$4")
# Programs of ours, whose main.go stands beside their go.mod.
(begin kstatus; go get "sigs.k8s.io/cli-utils@v$5"; go mod tidy)
(begin argocd-lua; go get "github.com/yuin/gopher-lua@v$6" layeh.com/gopher-json@97fed8db8427; go mod tidy)
# What its own go.mod replaces, ours must replace too: a replacement holds for the main module only. One by a directory of
# its own (Flux's ./api) is none to us: that directory is published beside it.
replaced() { # MODULE@VERSION
  go mod edit -json "$(go mod download -json "$1" | jq -er .GoMod)" |
    jq -r '.Replace // [] | .[] | select(.New.Version) | "\(.Old.Path)\(if .Old.Version then "@" + .Old.Version else "" end)=\(.New.Path)@\(.New.Version)"' |
    while read -r r; do go mod edit -replace "$r"; done
}
(begin helm-unittest; m=github.com/helm-unittest/helm-unittest; replaced "$m@v$7"; go get -tool "$m/cmd/helm-unittest@v$7")
(begin prometheus; m=github.com/prometheus/prometheus; replaced "$m@v$8"; go get -tool "$m/cmd/prometheus@v$8" "$m/cmd/promtool@v$8")
# Only its files are wanted, nothing is compiled: no requirement of its own is asked for.
(begin prometheus-operator; m=github.com/prometheus-operator/prometheus-operator; go mod edit -require "$m@v$9"; go mod download "$m")
# 0.18.2 of pkg/artifact, which Flux 1.9.4 asks for, is not to be had from the module proxy.
flux() { # NAME VERSION
  begin "flux-$1"
  local m=github.com/fluxcd/$1-controller
  replaced "$m@v$2"
  go mod edit -replace github.com/fluxcd/pkg/artifact=github.com/fluxcd/pkg/artifact@v0.18.1
  go get -tool "$m@v$2"
}
(flux source "${10}")
(flux kustomize "${10}")
