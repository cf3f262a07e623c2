# shellcheck shell=bash
# Sourced by testbed/e2e.sh: a release from its installation to its rollback, and what must go on meanwhile.
# shellcheck disable=SC2154,SC2034,SC2317  # judged: read by a function of lib.sh; functions that until_true and step call; work, chart, token and the like: set by e2e.sh

install() {
  local began restricted
  namespace "$home"
  namespace "$team"
  secret "$home" "$database_in_cluster"
  began=$(now_ms)
  helm install chronos "$chart" -n "$home" -f "$work/values.yaml" --wait --timeout "$HELM_TIMEOUT" >"$work/notes.txt" || fail "helm install is done"
  fact "two replicas ready $(seconds_since "$began") s after helm install"
  [ "$(pods_of "$home" | wc -l)" = 2 ] || fail "there are two pods"
  refused "a pod that may be root in that namespace" kubectl run -n "$home" rooted --image=localhost/pause:1
  restricted=$(grep -c restricted <<<"$said")
  [ "$restricted" -ge 1 ] || fail "it is refused by the restricted standard: $said"
  until_true 60 "a leader is there" leads_now "$home"
  [ "$(restarts "$home")" = 0 ] || fail "no pod has restarted"
  grep -q 'helm test' "$work/notes.txt" || fail "the notes tell what to do next"
}

helm_test() {
  helm test chronos -n "$home" --logs --timeout "$HELM_TIMEOUT" >"$work/test.txt" 2>&1 || { cat "$work/test.txt" >&2; fail "helm test passes"; }
  grep -v '^\(NAME\|LAST DEPLOYED\|NAMESPACE\|STATUS\|REVISION\|DESCRIPTION\|TEST SUITE\|Last Started\|Last Completed\|Phase\|POD LOGS\|NOTES\):' "$work/test.txt" |
    sed -n '/^POD LOGS/,$p;/ok/p' | head -n 12 | sed 's/^/   /'
}

an_alarm() {
  local began
  agent "$team"
  kubectl apply -n "$team" -f examples/alarms.yaml >/dev/null
  began=$(now_ms)
  ready "$team" agent/portfolio alarm/daily-summary alarm/confirm-transaction
  tell "Agent and Alarms Ready after $(seconds_since "$began") s"
  until_true 30 "the wake reaches the router pod" woken 'confirm transaction'
  until_true 30 "the Alarm is Fired" field_is "$team" alarm/confirm-transaction .status.phase Fired
  kubectl get alarms -n "$team" | sed 's/^/   /'
  [ "$(wakes 'confirm transaction' | jq -r '.body.alarm_id')" = "$(field "$team" alarm/confirm-transaction .status.alarmId)" ] || fail "it is that alarm's wake"
  wakes 'confirm transaction' | grep -qF '"payload":{"tx":"0xabc","amount":1.50}' || fail "the payload comes to the byte"
  [ "$(wake_count 'confirm transaction')" = 1 ] || fail "it comes once"
  fact "wake at the router pod, status Fired"
}

# As NOTES and the guides have it: from outside, through a forwarded port.
over_http() {
  local port made id
  kubectl port-forward -n "$home" service/chronos :9096 >"$work/forward.txt" 2>&1 & forward_pid=$!
  until_true 20 "a port is forwarded" grep -qs '^Forwarding from 127' "$work/forward.txt"
  port=$(sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$work/forward.txt")
  principal=$(examples/sign-in.sh "http://127.0.0.1:$port" "$token") || fail "the agent signs in"
  made=$(curl -fsS -H "Authorization: Bearer $token" -H "X-Chronos-Agent: $principal" -H 'Content-Type: application/json' "http://127.0.0.1:$port/v1/alarms" \
    -d '{"kind": "once", "delay_seconds": 2, "label": "over http", "wake_message": "Follow up."}') || fail "an alarm is made over HTTP"
  id=$(jq -r .data.id <<<"$made")
  until_true 30 "its wake arrives" woken 'over http'
  fired() { [ "$(sql "SELECT status FROM alarms WHERE id = '$id'")" = fired ]; }
  until_true 30 "its row is fired" fired
  kill "$forward_pid"; wait "$forward_pid" 2>/dev/null || true
  forward_pid=''
  fact "signed in by examples/sign-in.sh, alarm made, wake received, row fired"
}

leader_deleted() {
  local pod fault
  load "$home" deleted "$LOAD" "$STEP"
  behave '{"delay_ms": 300}'
  wait_until "$(after "$first_due" 3)"
  pod=$(leader "$home") fault=$(now)
  kubectl delete pod -n "$home" "$pod" --wait=false >/dev/null
  tell "leader $pod is deleted"
  until_true 60 "another pod leads" other_leads "$home" "$pod"
  judge deleted "$LOAD" "$fault"
  fact "no wake for at most $(judged longest_pause_s) s"
  [ "$(judged repeated)" = 0 ] || fail "a pod that is told to go repeats nothing, but $(judged repeated) wakes came twice"
  fact "none twice"
  once+=("deleted $LOAD") last_judged=$(now_ms)
  behave '{}'
  kubectl rollout status -n "$home" deployment/chronos --timeout=90s >/dev/null
}

leader_killed() {
  local pod container pid fault
  load "$home" killed "$LOAD_FAILOVER" "$STEP"
  behave '{"delay_ms": 300}'                               # so that some are in flight
  wait_until "$(after "$first_due" 5)"
  pod=$(leader "$home")
  container=$(field "$home" "pod/$pod" '.status.containerStatuses[0].containerID')
  pid=$(ctr -a "$containerd" -n k8s.io tasks ls | awk -v id="${container#containerd://}" '$1 == id { print $2 }')
  [ -n "$pid" ] || fail "the leader's process is found"
  fault=$(now)
  kill -KILL "$pid"
  tell "leader $pod, process $pid, is killed with SIGKILL"
  judge killed "$LOAD_FAILOVER" "$fault"
  fact "deliveries went on after $(judged longest_pause_s) s"
  at_most "$(judged late_max_s)" "$FAILOVER_SECONDS" || fail "no wake is later than $FAILOVER_SECONDS s, but one was $(judged late_max_s) s"
  [ "$(judged repeated_before_fault)" = 0 ] || fail "nothing is repeated before the kill"
  fact "$(judged repeated) in flight came again, under the same delivery id"
  behave '{}'
  kubectl rollout status -n "$home" deployment/chronos --timeout=90s >/dev/null
  until_true 60 "a leader is there" leads_now "$home"
}

# roll LABEL WHAT COMMAND...: COMMAND exchanges the pods under load; nothing is lost and nothing comes twice. Meanwhile an agent goes on
# making alarms through the Service.
roll() {
  local label=$1 what=$2 began steady; shift 2
  load "$home" "$label" "$LOAD_ROLLOUT" "$STEP_ROLLOUT"
  rm -f "$work/stop"
  under_agent steady "$(api_url "$home")" "$label-steady" 0.1 "$work/stop" >"$work/steady.json" & steady_pid=$!
  wait_until "$first_due"
  began=$(now_ms)
  "$@" >"$work/roll.txt" || { cat "$work/roll.txt" >&2; fail "$what is done"; }
  fact "$what took $(seconds_since "$began") s"
  before "$last_due" || fail "the load lasts as long as the rollout"
  judge "$label" "$LOAD_ROLLOUT"
  touch "$work/stop"
  wait "$steady_pid" || fail "the agent gets through to the facade at all times"
  steady_pid='' steady=$(<"$work/steady.json")
  [ "$(judged repeated)" = 0 ] || fail "nothing comes twice in a rollout, but $(judged repeated) wakes did"
  fact "none twice"
  until_true 60 "the agent's wakes arrive" all_woken "$label-steady" "$(jq .made <<<"$steady")"
  wakes "$label-steady " | python3 -B testbed/e2e/agent.py judge "$label-steady" "$(jq .made <<<"$steady")" >"$work/steady-judged.json" || fail "the agent's alarms all fire"
  [ "$(jq .repeated "$work/steady-judged.json")" = 0 ] || fail "none of the agent's wakes comes twice"
  once+=("$label $LOAD_ROLLOUT" "$label-steady $(jq .made <<<"$steady")") last_judged=$(now_ms)
  fact "$(jq .made <<<"$steady") alarms made over HTTP meanwhile, $(jq .again <<<"$steady") calls made again$(jq -r 'if .again > 0 then " (\(.reasons | to_entries | map("\(.key) \(.value)") | join(", ")))" else "" end' <<<"$steady")"
}

rolling_upgrade() {
  local images
  upgrade() { helm upgrade chronos "$chart" -n "$home" -f "$work/values.yaml" --set image.tag="$next_tag" --set settings.CHRONOS_TICK_MS=900 --wait --timeout "$HELM_TIMEOUT"; }
  roll upgrade "helm upgrade to another image and another setting" upgrade
  until_true 90 "the old pods are gone" two_pods
  images=$(kubectl get pods -n "$home" -l app.kubernetes.io/name=chronos -o 'jsonpath={.items[*].spec.containers[0].image}')
  [ "$images" = "localhost/chronos:$next_tag localhost/chronos:$next_tag" ] || fail "all pods run the new image: $images"
}
two_pods() { [ "$(kubectl get pods -n "$home" -l app.kubernetes.io/name=chronos -o name | wc -l)" = 2 ]; }

bad_upgrade() {
  local revision=$(($(helm history chronos -n "$home" -o json | jq length)))
  refused "a setting that the chart sets itself" helm upgrade chronos "$chart" -n "$home" -f "$work/values.yaml" --set settings.CHRONOS_PORT=1
  grep -q CHRONOS_PORT <<<"$said" || fail "the refusal names CHRONOS_PORT: $said"
  tell "$(grep -o '[^:]*CHRONOS_PORT.*' <<<"$said" | head -n 1)"
  refused "a value that is none" helm upgrade chronos "$chart" -n "$home" -f "$work/values.yaml" --set-string replicas=many
  grep -q replicas <<<"$said" || fail "the refusal names replicas: $said"
  refused "no router" helm upgrade chronos "$chart" -n "$home" -f "$work/values.yaml" --set router.wakeUrl=
  grep -q 'router.wakeUrl' <<<"$said" || fail "the refusal names router.wakeUrl: $said"
  [ "$(helm history chronos -n "$home" -o json | jq length)" = "$revision" ] || fail "nothing was installed"
  fact "three mistakes refused by name, nothing changed"
}

# An image that is not there: the rollout stops at its first pod, the old ones go on, and a rollback puts it right.
stuck_upgrade() {
  local running
  refused "an image that is not there" helm upgrade chronos "$chart" -n "$home" -f "$work/values.yaml" --set image.tag=nowhere --wait --timeout 15s
  kubectl get pods -n "$home" -o json | jq -e '[.items[].status | .initContainerStatuses[]?, .containerStatuses[]? | .state.waiting.reason // "" | select(test("Image"))] | length > 0' >/dev/null ||
    fail "it is the image that the new pod waits for"
  running=$(kubectl get deployment chronos -n "$home" -o 'jsonpath={.status.readyReplicas}')
  [ "$running" = 2 ] || fail "both pods of before go on: $running"
  alarm "$team" during-bad-upgrade 'delaySeconds: 1'
  until_true 30 "wakes go on" woken during-bad-upgrade
  fact "helm says so after its timeout; both old pods deliver on"
}

rollback() {
  back() { helm rollback chronos 1 -n "$home" --wait --timeout "$HELM_TIMEOUT"; }
  roll rollback "helm rollback to revision 1" back
  until_true 90 "the pods of before are gone" two_pods
  [ "$(kubectl get deployment chronos -n "$home" -o 'jsonpath={.spec.template.spec.containers[0].image}')" = "localhost/chronos:$tag" ] || fail "the first image is back"
}

separate() {
  local names
  apart() { helm upgrade chronos "$chart" -n "$home" -f "$work/values.yaml" --set mode=separate --wait --timeout "$HELM_TIMEOUT"; }
  roll separate "helm upgrade to mode separate" apart
  names=$(kubectl get deployments -n "$home" -o json | jq -r '[.items[] | "\(.metadata.name) \(.status.readyReplicas)/\(.spec.replicas)"] | join(", ")')
  [ "$names" = 'chronos-api 2/2, chronos-controller 2/2, chronos-dispatch 2/2' ] || fail "there is a Deployment per role: $names"
  fact "$names"
  alarm "$team" in-separate-mode 'delaySeconds: 1'
  until_true 30 "an Alarm's wake arrives" woken in-separate-mode
  until_true 30 "its status tells" field_is "$team" alarm/in-separate-mode .status.phase Fired
  helm rollback chronos 1 -n "$home" --wait --timeout "$HELM_TIMEOUT" >/dev/null || fail "helm rollback to one Deployment is done"
  [ "$(kubectl get deployments -n "$home" -o 'jsonpath={.items[*].metadata.name}')" = chronos ] || fail "there is one Deployment again"
  until_true 90 "its two pods are there" two_pods
}

# A repeat may come long after its wake: when a claim is taken over, or its lease ends. By now it would have come.
once_each() {
  local entry label count repeated=0
  for entry in "${once[@]}"; do
    label=${entry% *} count=${entry##* }
    judged=$(wakes "$label " | python3 -B testbed/e2e/agent.py judge "$label" "$count") || fail "the wakes of '$label' are still as promised"
    [ "$(judged repeated)" = 0 ] || fail "nothing came twice, but of '$label' $(judged repeated) wakes did, after they were first judged"
    repeated=$((repeated + count))
  done
  fact "all $repeated wakes of deleted leader, upgrade, rollback and separate mode judged again $(seconds_since "$last_judged") s after the last of them: none twice"
}
