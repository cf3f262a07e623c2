#!/usr/bin/env bash
# testbed/e2e.sh    Chronos as people run it: its image, its chart, a real cluster, a real Postgres, Flux
#
# Brings up a cluster of one node (testbed/cluster.sh), a Postgres outside of it, a router in a pod; installs the chart with helm and
# does to it what happens to releases: leaders deleted and killed, upgrades under load, mistakes, rollbacks, uninstall and
# reinstall; then Flux, a trial installation, one confined to some namespaces. Every step is asserted and timed; the table at
# the end is made to be pasted into a note. Ctrl-C clears everything away. Needs root. `make e2e` builds what it needs.
#
#   E2E_STEPS="install an_alarm flux"   these steps alone, in this order (install and an_alarm come first)
#   E2E_ARCHIVE=FILE                    an OCI archive to take for the image instead of building it
#   E2E_KEEP=true                       on a failure, wait with everything up until Ctrl-C
# shellcheck disable=SC2317  # functions that until_true, step and trap call
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh
. testbed/e2e/lib.sh
. testbed/e2e/release.sh
. testbed/e2e/remove.sh
. testbed/e2e/flux.sh

bin=${KUBEBUILDER_ASSETS:?is not set: use make e2e}
use_go                                                      # where Flux's modules are

# What design.md 5 promises of claims whose dispatcher died: three beats of 5 s and a look, against a lease of 120 s.
FAILOVER_SECONDS=25
HELM_TIMEOUT=180s
LOAD=1000              # wakes of a short load: 20 s
LOAD_FAILOVER=2000     # wakes of one that must outlast a failover: 40 s
STEP=0.02              # seconds between two of these: 50 a second; the router takes 0.3 s for each, and an agent has at most 32 in flight
LOAD_ROLLOUT=4000      # wakes of one that must outlast a rollout: 40 s
STEP_ROLLOUT=0.01      # seconds between two of those: 100 a second
LOAD_LEAD=25           # seconds to make them in before the first is due

STEPS=(install helm_test an_alarm over_http leader_deleted leader_killed rolling_upgrade bad_upgrade stuck_upgrade rollback separate flux
  uninstall reinstall once_each uninstall_all trial namespaced)
declare -A NAMES=(
  [install]='helm install --wait, two replicas in a namespace that enforces restricted pod security'
  [helm_test]='helm test'
  [an_alarm]='Agent and Alarms applied'
  [over_http]='an alarm over HTTP by an agent'
  [leader_deleted]='leader pod deleted under load'
  [leader_killed]='leader killed with SIGKILL under load'
  [rolling_upgrade]='rolling upgrade under load'
  [bad_upgrade]='helm upgrade with mistakes'
  [stuck_upgrade]='helm upgrade to an image that is not there'
  [rollback]='helm rollback under load'
  [separate]='from one Deployment to one per role under load, and back'
  [flux]='Flux: apply, wait, repair, fail, prune'
  [uninstall]='helm uninstall'
  [reinstall]='helm install again'
  [once_each]='every load under which nothing may come twice, judged again'
  [uninstall_all]='helm uninstall with crds.keep=false'
  [trial]='trial installation with a Postgres pod on a volume'
  [namespaced]='installation confined to namespaces'
)
once=() last_judged=0   # loads under which nothing may come twice: "LABEL COUNT"
home=chronos-system team=trading chart=charts/chronos
did=$(sed -n 's/^  did: //p' examples/agent.yaml)

# ---- what runs, and its end ----

work=$(mktemp -d /tmp/e2e.XXXXXX)                          # a short path: there are sockets in it
chmod 755 "$work"
export KUBECONFIG=$work/cluster/kubeconfig HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm
began_all=$(now_ms)
cluster_pid='' postgres_pid='' forward_pid='' steady_pid='' git_http_pid='' source_controller_pid='' kustomize_controller_pid=''
clean_up() {
  local status=$? pid
  trap - EXIT
  trap '' INT TERM HUP                                      # a second Ctrl-C would leave half of it
  [ "$status" = 0 ] || [ -z "$current" ] || end_step "$([ "$status" -ge 129 ] && echo stopped || echo FAILED)"
  if [ "$status" = 1 ] && [ -n "$cluster_pid" ]; then
    diagnose >&2 || true
    if [ "${E2E_KEEP-}" = true ]; then
      say "everything stays up until Ctrl-C: export KUBECONFIG=$KUBECONFIG; $bin/kubectl get pods -A"
      ended=''
      trap 'ended=yes' INT TERM HUP
      until [ -n "$ended" ]; do pause 1; done
    fi
  fi
  flux_end
  for pid in $forward_pid $steady_pid $postgres_pid $cluster_pid; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf --one-file-system "$work"
  [ ${#table[@]} = 0 ] || print_table
  if [ "$status" = 0 ]; then echo; echo "Everything as promised, in $(seconds_since "$began_all") s."; fi
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

diagnose() { # what a person would look at first
  local pod
  echo "---- pods"; kubectl get pods -A -o wide
  echo "---- alarms and agents"; kubectl get alarms,agents -A 2>/dev/null
  echo "---- events"; kubectl get events -A --sort-by=.lastTimestamp | tail -n 15
  for pod in $(kubectl get pods -A -o json | jq -r '.items[] | select(.metadata.labels["app.kubernetes.io/part-of"] == "chronos" or .metadata.labels["app.kubernetes.io/instance"] == "chronos") | "\(.metadata.namespace)/\(.metadata.name)"'); do
    echo "---- $pod"; kubectl logs -n "${pod%/*}" "${pod#*/}" --all-containers --tail=12
  done
  for pod in "$work"/*.log; do echo "---- $pod"; tail -n 8 "$pod"; done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# router_pod NAMESPACE TOKEN: a router that takes wakes with that token; sets $router to where it is
router_pod() {
  kubectl create secret generic router -n "$1" --from-literal=token="$2" >/dev/null
  kubectl apply -n "$1" -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: router}
spec:
  selector: {matchLabels: {app: router}}
  template:
    metadata: {labels: {app: router}}
    spec:
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: router
          image: localhost/router:1
          env: [{name: TOKEN_FILE, value: /etc/router/token}]
          readinessProbe: {httpGet: {path: /livez, port: 8088}, periodSeconds: 1}
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          volumeMounts: [{name: token, mountPath: /etc/router}]
      volumes: [{name: token, secret: {secretName: router}}]
---
apiVersion: v1
kind: Service
metadata: {name: router}
spec: {selector: {app: router}, ports: [{port: 8088}]}
YAML
  kubectl rollout status -n "$1" deployment/router --timeout=60s >/dev/null || fail "the router runs"
  router=$(cluster_ip "$1" router)
  until_true 30 "the router's Service answers" at_router --no-show-error --output /dev/null "http://$router:8088/livez"
}

# ---- before the first step ----

image() {
  tag=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1) next_tag=$tag-next
  archive=${E2E_ARCHIVE:-dist/chronos-$tag.oci.tar}
  if [ -z "${E2E_ARCHIVE-}" ]; then
    IMAGE_ENGINE=umoci testbed/image.sh >"$work/image.txt" || fail "the image is built"
    sed 's/^/   /' "$work/image.txt"
    fact "$(sed -n 's/^size *//p' "$work/image.txt"); $(sed -n 's/^start *//p' "$work/image.txt")"
  fi
}

bring_up() {
  local began
  began=$(now_ms)
  TESTBED_PARENT=$$ setsid testbed/cluster.sh run "$work/cluster" >"$work/cluster.out" 2>"$work/cluster.log" & cluster_pid=$!
  until [ -s "$work/cluster.out" ]; do
    ! gone "$cluster_pid" || { cat "$work/cluster.log" >&2; fail "the cluster comes up"; }
    pause 0.2
  done
  fact "node ready after $(seconds_since "$began") s"
  while IFS='=' read -r name value; do
    case $name in ns | gw | containerd) printf -v "$name" %s "$value" ;; esac
  done <"$work/cluster/env"

  # Outside of the cluster, at the machine's end of the wire, and safe: fsync is on.
  # shellcheck disable=SC2154  # gw: from the file above
  coproc POSTGRES { TESTBED_PARENT=$$ TESTBED_ADDRESS=$gw exec testbed/postgres.sh obey "$work/postgres" 2>"$work/postgres.log"; }
  # shellcheck disable=SC2153  # coproc sets it
  postgres_pid=$POSTGRES_PID
  read -r _ database <&"${POSTGRES[0]}" || { cat "$work/postgres.log" >&2; fail "Postgres comes up"; }
  psql "$database/postgres" -c 'CREATE DATABASE chronos'
  database=$database/chronos database_in_cluster=$database

  testbed/cluster.sh import "$work/cluster" localhost/chronos "$archive"
  ctr -a "$containerd" -n k8s.io images tag "localhost/chronos:$tag" "localhost/chronos:$next_tag" >/dev/null
  testbed/cluster.sh load "$work/cluster" localhost/router:1 "$bin/router" /router
  postgres_tag=$(testbed/postgres-image.sh "$work/postgres.oci.tar")
  testbed/cluster.sh import "$work/cluster" localhost/postgres "$work/postgres.oci.tar"
  rm "$work/postgres.oci.tar"

  token=$(openssl rand -hex 20) agent_secret=$(openssl rand -hex 20) wake_token=$(openssl rand -hex 20)
  namespace agents
  router_pod agents "$wake_token"
  cat >"$work/values.yaml" <<YAML
router: {wakeUrl: "http://router.agents.svc:8088/internal/wake"}
secrets: {existingSecret: chronos}
# A load of one agent is more than one agent may ask for. A grace period of 35 s, not 85, keeps the rollouts short.
settings: {CHRONOS_OWNER_RATE: "0"}
wakeTimeoutSeconds: 10
YAML
  tell "network policies cannot be tried here: the node's bridge plugin does not enforce them"
}

steps=("${STEPS[@]}")
[ -z "${E2E_STEPS-}" ] || read -r -a steps <<<"$E2E_STEPS"
for name in "${steps[@]}"; do [ -n "${NAMES[$name]-}" ] || die "no step '$name': there are ${STEPS[*]}"; done
step image "image"
step bring_up "cluster of one node, Postgres outside of it (fsync on), router pod"
for name in "${steps[@]}"; do step "$name" "${NAMES[$name]}"; done
