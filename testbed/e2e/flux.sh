# shellcheck shell=bash
# Sourced by testbed/e2e.sh: Flux's source-controller and kustomize-controller bring Agent and Alarm from a git repository over HTTP.
# Both run on the machine, outside of the cluster, and write as a ServiceAccount that is admin of one namespace, by the roles that
# the chart aggregates.
# shellcheck disable=SC2154,SC2317  # functions that until_true and step call; work, bin, did and the like: set by e2e.sh

FLUX_INTERVAL=5s       # how often both look by themselves

flux_start() {
  local storage git_port began
  storage=$(free_port) git_port=$(free_port)
  began=$(now_ms)
  for module in flux-source/source-controller flux-kustomize/kustomize-controller; do
    kubectl apply --server-side -f "$(go -C "testbed/${module%/*}" list -m -f '{{.Dir}}' "github.com/fluxcd/${module#*/}")/config/crd/bases" >/dev/null
  done
  kubectl create namespace flux-system >/dev/null
  namespace gitops
  kubectl create serviceaccount gitops -n flux-system >/dev/null
  kubectl create rolebinding gitops -n gitops --clusterrole=admin --serviceaccount=flux-system:gitops >/dev/null
  kubectl wait --for=condition=Established crd/gitrepositories.source.toolkit.fluxcd.io crd/kustomizations.kustomize.toolkit.fluxcd.io --timeout=30s >/dev/null

  mkdir -p "$work/flux" "$work/git"
  git init --quiet --bare --initial-branch=main "$work/git/fleet.git"
  git clone --quiet "$work/git/fleet.git" "$work/fleet" 2>/dev/null
  pushd "$work" >/dev/null || exit                          # their logs go where they are started
  start git_http "$bin/git-http" "$work/git" "127.0.0.1:$git_port"
  RUNTIME_NAMESPACE=flux-system start source_controller "$bin/source-controller" --storage-path="$work/flux" --storage-addr="127.0.0.1:$storage" \
    --storage-adv-addr="127.0.0.1:$storage" --metrics-addr=0 --health-addr=0 --events-addr= --log-level=info
  RUNTIME_NAMESPACE=flux-system start kustomize_controller "$bin/kustomize-controller" --metrics-addr=0 --health-addr=0 --events-addr= --log-level=info
  popd >/dev/null || exit
  kubectl apply -f - >/dev/null <<YAML
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: fleet, namespace: flux-system}
spec: {interval: $FLUX_INTERVAL, url: "http://127.0.0.1:$git_port/fleet.git", ref: {branch: main}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: alarms, namespace: flux-system}
spec:
  interval: $FLUX_INTERVAL
  retryInterval: $FLUX_INTERVAL
  timeout: 30s
  sourceRef: {kind: GitRepository, name: fleet}
  path: ./alarms
  targetNamespace: gitops
  serviceAccountName: gitops
  prune: true
  wait: true
YAML
  tell "Flux is up after $(seconds_since "$began") s"
}

commit() { # MESSAGE: everything in the working copy; sets $revision
  git -C "$work/fleet" add -A
  git -C "$work/fleet" -c user.name=e2e -c user.email=e2e@localhost commit --quiet -m "$1"
  git -C "$work/fleet" push --quiet origin main
  revision=$(git -C "$work/fleet" rev-parse HEAD)
}
gitops_alarm() { # CRON MESSAGE
  printf '%s\n' 'apiVersion: chronos.dev/v1alpha1' 'kind: Alarm' 'metadata: {name: from-git}' 'spec:' "  owner: $did" "  cronExpr: \"$1\"" "  wakeMessage: $2" >"$work/fleet/alarms/alarm.yaml"
}
condition() { kubectl get kustomization alarms -n flux-system -o json | jq -r --arg field "$1" '.status.conditions[]? | select(.type == "Ready") | .[$field]'; } # FIELD
applied() { kubectl get kustomization alarms -n flux-system -o json | jq -e --arg revision "$revision" '(.status.lastAppliedRevision // "") | endswith($revision)' >/dev/null && [ "$(condition status)" = True ]; }

flux() {
  local began agent_key sentence
  flux_start
  mkdir -p "$work/fleet/alarms"
  # A DID belongs to one namespace of the cluster: this agent has another key than the one of examples/.
  agent_key=$(openssl rand -hex 32)
  did_there=$did did=did:matrix:22222222-3333-4444-5555-666666666666:${agent_key:0:16}
  printf '%s\n' 'apiVersion: chronos.dev/v1alpha1' 'kind: Agent' 'metadata: {name: from-git}' 'spec:' "  did: $did" "  publicKey: \"$agent_key\"" >"$work/fleet/alarms/agent.yaml"
  gitops_alarm '0 9 * * MON-FRI' 'From git.'
  began=$(now_ms)
  commit "An agent and its alarm"
  until_true 90 "the Kustomization is Ready at the first commit" applied
  fact "Ready (wait: true) $(seconds_since "$began") s after the push"
  [ -n "$(field gitops alarm/from-git .status.alarmId)" ] || fail "Ready means that the alarm is stored"

  kubectl patch alarm from-git -n gitops --type=merge -p '{"spec": {"wakeMessage": "By hand."}}' >/dev/null
  began=$(now_ms)
  until_true 60 "drift is repaired" field_is gitops alarm/from-git .spec.wakeMessage 'From git.'
  fact "drift repaired after $(seconds_since "$began") s"

  gitops_alarm '0 25 * * *' 'From git.'
  began=$(now_ms)
  commit "A mistake"
  # Flux names the resource that stalled; what is wrong with it is in the resource itself.
  failed() { [ "$(condition status)" = False ] && [[ $(condition message) == *stalled*Alarm/gitops/from-git* ]]; }
  until_true 90 "the Kustomization fails and names the Alarm" failed
  fact "a mistake fails the sync after $(seconds_since "$began") s"
  tell "Kustomization: $(condition message)"
  sentence=$(field gitops alarm/from-git '.status.conditions[?(@.type=="Stalled")].message')
  [[ $sentence == spec.cronExpr* ]] || fail "the Alarm says what is wrong: $sentence"
  tell "Alarm: $sentence"
  [ "$(sql "SELECT status FROM alarms WHERE id = '$(field gitops alarm/from-git .status.alarmId)'")" = active ] || fail "what was stored before goes on"

  gitops_alarm '30 9 * * MON-FRI' 'From git.'
  began=$(now_ms)
  commit "Put right"
  until_true 90 "the Kustomization is Ready again" applied
  fact "Ready again $(seconds_since "$began") s after the correction"

  pruned_id=$(field gitops alarm/from-git .status.alarmId)
  git -C "$work/fleet" rm --quiet alarms/alarm.yaml
  began=$(now_ms)
  commit "No alarm"
  pruned() { [ -z "$(kubectl get alarm from-git -n gitops -o name --ignore-not-found)" ] && [ "$(sql "SELECT status FROM alarms WHERE id = '$pruned_id'")" = cancelled ]; }
  until_true 90 "the Alarm is pruned and its row cancelled" pruned
  fact "pruned and its row cancelled after $(seconds_since "$began") s"
  did=$did_there
  flux_stop
}

flux_stop() {
  local module
  kubectl delete kustomization/alarms gitrepository/fleet -n flux-system --timeout=60s >/dev/null || fail "Flux lets go"
  flux_end
  for module in flux-source/source-controller flux-kustomize/kustomize-controller; do
    kubectl delete -f "$(go -C "testbed/${module%/*}" list -m -f '{{.Dir}}' "github.com/fluxcd/${module#*/}")/config/crd/bases" >/dev/null
  done
  kubectl delete namespace gitops flux-system --timeout=90s >/dev/null || fail "the namespaces go"
}
flux_end() { # its processes
  local pid
  for pid in $kustomize_controller_pid $source_controller_pid $git_http_pid; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  kustomize_controller_pid='' source_controller_pid='' git_http_pid=''
}
