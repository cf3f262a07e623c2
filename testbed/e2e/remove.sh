# shellcheck shell=bash
# Sourced by testbed/e2e.sh: a release goes and comes back; the small installations.
# shellcheck disable=SC2154,SC2317  # functions that until_true and step call; work, chart, token and the like: set by e2e.sh

finalizers() { kubectl get alarms,agents -A -o json | jq -r '[.items[].metadata.finalizers // [] | .[] | select(startswith("chronos.dev"))] | length'; }
# known: every Alarm of the team with its row and its next time. `beat` moves on by itself.
known() { kubectl get alarms -n "$team" -o json | jq -r '.items[] | select(.metadata.name != "beat" and .metadata.name != "goes-meanwhile") | "\(.metadata.name) \(.status.alarmId) \(.status.nextFireTime)"' | sort; }

uninstall() {
  local began took rows left
  alarm "$team" beat 'cronExpr: "@every 5s"'
  alarm "$team" far-away 'fireAt: "2099-01-01T00:00:00Z"'
  alarm "$team" goes-meanwhile 'cronExpr: "0 4 * * *"'
  ready "$team" alarm/beat alarm/far-away alarm/goes-meanwhile
  until_true 30 "a series fires" woken beat
  known >"$work/known"
  [ "$(finalizers)" -gt 0 ] || fail "our finalizers are there"
  goes_meanwhile=$(field "$team" alarm/goes-meanwhile .status.alarmId)
  rows=$(sql "SELECT count(*) FROM alarms WHERE status = 'active' AND source = 'kubernetes'")
  began=$(now_ms)
  helm uninstall chronos -n "$home" --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm uninstall is done"
  fact "done in $(seconds_since "$began") s"
  no_pods() { [ -z "$(kubectl get pods -n "$home" -l app.kubernetes.io/name=chronos -o name)" ]; }
  until_true 60 "the pods are gone" no_pods
  [ "$(finalizers)" = 0 ] || fail "no finalizer of ours is left: $(finalizers)"
  [ "$(kubectl get crds -o name | grep -c chronos.dev)" = 2 ] || fail "the CRDs are kept"
  [ "$(kubectl get alarms -n "$team" -o name | wc -l)" -ge 3 ] || fail "the Alarms are kept"
  [ "$(sql "SELECT count(*) FROM alarms WHERE status = 'active' AND source = 'kubernetes'")" = "$rows" ] || fail "their rows are kept"
  fact "CRDs, Alarms, Agents and $rows active rows kept, no finalizer"
  kubectl delete pod chronos-test -n "$home" --ignore-not-found >/dev/null    # as NOTES say
  left=$(kubectl get clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,jobs,pods,services,deployments -A -l app.kubernetes.io/instance=chronos -o name) ||
    fail "it can be seen what is left"
  [ -z "$left" ] || fail "nothing else of the release is left: $(paste -sd ' ' <<<"$left")"
  began=$(now_ms)
  kubectl delete alarm goes-meanwhile -n "$team" --timeout=10s >/dev/null || fail "an Alarm can be deleted with nobody there"
  took=$(seconds_since "$began")
  at_most "$took" 5 || fail "it is gone at once, not after $took s"
  fact "an Alarm is deleted at once"
}

reinstall() {
  local beats
  beats=$(wake_count beat)
  helm install chronos "$chart" -n "$home" -f "$work/values.yaml" --set settings.CHRONOS_ORPHAN_GRACE_SECONDS=5 --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm install is done"
  until_true 60 "the series goes on" woken beat "$((beats + 1))"
  ready "$team" alarm/beat alarm/far-away alarm/daily-summary agent/portfolio
  known >"$work/known-again"
  diff "$work/known" "$work/known-again" >&2 || fail "the same alarms with the same next times are there"
  fact "$(wc -l <"$work/known") Alarms found again: same rows, same next times"
  [ "$(wakes beat | jq -r .body.alarm_id | sort -u | wc -l)" = 1 ] || fail "the series is the same alarm as before"
  [ "$(wakes beat | jq -r .body.delivery_id | sort | uniq -d | wc -l)" = 0 ] || fail "none of its wakes comes twice"
  fact "a series goes on ($(wakes beat | jq -s '[.[].body.missed // 0] | add') slots that passed meanwhile are told as missed)"
  cancelled() { [ "$(sql "SELECT status FROM alarms WHERE id = '$goes_meanwhile'")" = cancelled ]; }
  until_true 120 "the row of the Alarm that was deleted meanwhile is cancelled" cancelled
  fact "the row of the one deleted meanwhile is cancelled"
}

uninstall_all() {
  local rows
  helm upgrade chronos "$chart" -n "$home" -f "$work/values.yaml" --set crds.keep=false --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm upgrade is done"
  rows=$(sql "SELECT count(*) FROM alarms WHERE status = 'active'")
  helm uninstall chronos -n "$home" --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm uninstall is done"
  no_crds() { local crds; crds=$(kubectl get crds -o name) && ! grep -q chronos.dev <<<"$crds"; }
  until_true 60 "the CRDs are gone" no_crds
  [ "$(sql "SELECT count(*) FROM alarms WHERE status = 'active'")" = "$rows" ] || fail "rows are kept"
  kubectl delete namespace "$home" "$team" --timeout=90s >/dev/null || fail "the namespaces go"
  fact "CRDs and with them the Alarms are gone, nothing stuck, $rows active rows kept, namespaces deleted"
}

# A Postgres in a pod, on a volume that outlives it; every secret made by the chart.
trial() {
  local began trial_token
  namespace trial
  mkdir -p "$work/volume"
  chown 999:999 "$work/volume"
  kubectl apply -f - >/dev/null <<YAML
{apiVersion: v1, kind: PersistentVolume, metadata: {name: trial}, spec: {capacity: {storage: 8Gi}, accessModes: [ReadWriteOnce],
 storageClassName: by-hand, persistentVolumeReclaimPolicy: Retain, hostPath: {path: $work/volume}}}
YAML
  cat >"$work/trial.yaml" <<YAML
postgres: {trial: {enabled: true, image: {repository: localhost/postgres, tag: "$postgres_tag"}, persistence: {storageClass: by-hand}}}
router: {wakeUrl: "http://router.trial.svc:8088/internal/wake"}
wakeTimeoutSeconds: 10
YAML
  began=$(now_ms)
  helm install chronos "$chart" -n trial -f "$work/trial.yaml" --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm install of the trial is done"
  fact "Postgres and two replicas ready $(seconds_since "$began") s after helm install"
  trial_token=$(kubectl get secret chronos-trial -n trial -o 'jsonpath={.data.wake-token}' | base64 -d)
  main_router=$router
  router_pod trial "$trial_token"
  agent trial
  alarm trial in-trial 'delaySeconds: 1'
  until_true 60 "a wake of the trial arrives" woken in-trial
  until_true 30 "its Alarm is Fired" field_is trial alarm/in-trial .status.phase Fired
  fact "wake received with the generated token"

  # The database goes away and comes back: what was stored is there, and nobody had to restart.
  alarm trial after-restart "fireAt: \"$(date --utc --date='+12 seconds' +%Y-%m-%dT%H:%M:%SZ)\""
  ready trial alarm/after-restart
  kubectl delete pod chronos-postgres-0 -n trial --wait=true >/dev/null
  until_true 120 "the wake arrives although the database was away" woken after-restart
  [ "$(wake_count after-restart)" = 1 ] || fail "it comes once"
  [ "$(restarts trial)" = 0 ] || fail "no pod of chronosd has restarted"
  fact "its Postgres pod was deleted: the alarm stored before fired after, no replica restarted"
  helm uninstall chronos -n trial --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm uninstall of the trial is done"
  kubectl get secret chronos-trial -n trial >/dev/null || fail "the generated secrets are kept"
  kubectl get pvc data-chronos-postgres-0 -n trial >/dev/null || fail "the claim with the data is kept"

  # Again, on what was kept.
  helm install chronos "$chart" -n trial -f "$work/trial.yaml" --set crds.keep=false --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "the trial is installed again"
  alarm trial again 'delaySeconds: 1'
  until_true 60 "a wake arrives" woken again
  helm uninstall chronos -n trial --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm uninstall of the trial is done"
  fact "installed again on the kept claim and secrets"
  router=$main_router
  kubectl delete namespace trial --timeout=90s >/dev/null || fail "the namespace goes"
}

# Rights in two namespaces alone; a third one's Alarms are nobody's.
namespaced() {
  local allowed name
  for name in confined team-a team-b team-c; do namespace "$name"; done
  psql "$database" -c 'CREATE DATABASE confined'
  secret confined "${database_in_cluster%/*}/confined"
  helm install chronos "$chart" -n confined -f "$work/values.yaml" --set 'watchNamespaces={team-a,team-b}' --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm install is done"
  allowed=$(kubectl get clusterroles -l app.kubernetes.io/instance=chronos -o json | jq -c '[.items[] | select(.metadata.labels | keys | any(startswith("rbac.authorization.k8s.io/aggregate")) | not) | .rules[] | [.resources, .resourceNames, .verbs]]')
  [ "$allowed" = '[[["namespaces"],["kube-system"],["get"]]]' ] || fail "its one right in the whole cluster is to read the namespace kube-system: $allowed"
  agent team-a
  alarm team-a team-a 'delaySeconds: 1'
  until_true 60 "a wake of a watched namespace arrives" woken team-a
  until_true 30 "its Alarm is Fired" field_is team-a alarm/team-a .status.phase Fired
  agent team-c
  alarm team-c unwatched 'delaySeconds: 1'
  pause 5
  [ -z "$(field team-c alarm/unwatched .status.phase)" ] || fail "an Alarm elsewhere is left alone"
  [ "$(wake_count unwatched)" = 0 ] || fail "an Alarm elsewhere does not fire"
  fact "watched: fired; elsewhere: left alone; one right in the cluster: get namespace kube-system"
  helm upgrade chronos "$chart" -n confined -f "$work/values.yaml" --set 'watchNamespaces={team-a,team-b}' --set crds.keep=false --wait --timeout "$HELM_TIMEOUT" >/dev/null
  helm uninstall chronos -n confined --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm uninstall is done"
  kubectl delete namespace confined team-a team-b team-c --timeout=90s >/dev/null || fail "the namespaces go"
}
