# shellcheck shell=bash
# Sourced by testbed/e2e.sh: steps and what they tell, looking again until it is so, the tools of the cluster, wakes.
# shellcheck disable=SC2154,SC2034  # work, bin, ns and the like: set by e2e.sh; said and the like: read by the steps

# Not lib.sh's, which reads: a Ctrl-C in the middle of a `read` would run the EXIT trap inside of it.
pause() { sleep "$1"; }

bold='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

# ---- steps ----

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
seconds_since() { awk -v a="$1" -v b="$(now_ms)" 'BEGIN { printf "%.1f", (b - a) / 1000 }'; } # MS

table=() current='' facts=() step_began=0
step() { # FUNCTION NAME...: runs it, times it, and writes it into the table
  local function=$1; shift
  current=$* facts=() step_began=$(now_ms)
  printf '\n%s== %s%s\n' "$bold" "$current" "$plain"
  "$function"
  end_step ok
}
end_step() { # ok | FAILED
  local text=''
  [ ${#facts[@]} = 0 ] || text=$(printf '%s; ' "${facts[@]}")
  table+=("$1"$'\t'"$(seconds_since "$step_began")"$'\t'"$current"$'\t'"${text%; }")
  current=''
}
fact() { facts+=("$*"); echo "   $*"; }                    # seen and asserted: goes into the table
tell() { echo "   $*"; }
fail() { say "not as promised: $*"; exit 1; }
print_table() {
  local row verdict took name text
  printf '\n%-7s %7s  %s\n' '' seconds 'step, and what was seen'
  for row in "${table[@]}"; do
    IFS=$'\t' read -r verdict took name text <<<"$row"
    printf '%-7s %7s  %s\n' "$verdict" "$took" "$name"
    [ -z "$text" ] || fold -s -w 100 <<<"$text" | sed 's/^/                   /; s/ *$//'
  done
}

# until_true SECONDS WHAT COMMAND...: looks again and again, and says what did not come true
until_true() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1)); shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$what, within $seconds s"
    ! gone "$cluster_pid" || fail "the cluster has ended"
    pause 0.2
  done
}
# refused WHAT COMMAND...: COMMAND fails; what it said is in $said
refused() {
  local what=$1; shift
  if said=$("$@" 2>&1); then fail "$what is refused, but it was accepted"; fi
}

# ---- the cluster ----

kubectl() { "$bin/kubectl" "$@"; }
helm() { "$bin/helm" "$@"; }
in_node() { nsenter --net="/run/netns/$ns" -- "$@"; }      # where addresses of Services lead somewhere
psql() { PGCONNECT_TIMEOUT=5 command psql -XAtq "$@"; }
sql() { psql "$database" -c "$1"; }                        # QUERY, in the database of the release under test

cluster_ip() { kubectl get service "$2" -n "$1" -o 'jsonpath={.spec.clusterIP}'; } # NAMESPACE SERVICE
namespace() { # NAME: one that takes only pods of the restricted standard
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" pod-security.kubernetes.io/enforce=restricted pod-security.kubernetes.io/warn=restricted >/dev/null
}
pods_of() { # NAMESPACE [COLUMNS]: the release's own pods that are not on their way out
  kubectl get pods -n "$1" -l app.kubernetes.io/name=chronos -o json |
    jq -r '.items[] | select(.metadata.deletionTimestamp == null and .status.phase == "Running") | .metadata.name'
}
leader() { # NAMESPACE: the pod that delivers
  local holder
  holder=$(kubectl get lease chronos-dispatch -n "$1" -o 'jsonpath={.spec.holderIdentity}' 2>/dev/null) || return 1
  [ -n "$holder" ] && echo "${holder%_*}"
}
leads_now() { # NAMESPACE: somebody leads, and it is a pod that is there
  local pod
  pod=$(leader "$1") && pods_of "$1" | grep -qx "$pod"
}
other_leads() { # NAMESPACE POD
  local pod
  pod=$(leader "$1") && [ "$pod" != "$2" ]
}
restarts() { kubectl get pods -n "$1" -l app.kubernetes.io/name=chronos -o json | jq '[.items[].status.containerStatuses[]?.restartCount] | add'; } # NAMESPACE

field() { kubectl get "$2" -n "$1" -o "jsonpath={$3}" 2>/dev/null; } # NAMESPACE KIND/NAME PATH
field_is() { [ "$(field "$1" "$2" "$3")" = "$4" ]; }
ready() { kubectl wait -n "$1" --for=condition=Ready "${@:2}" --timeout=60s >/dev/null || fail "${*:2} are Ready"; } # NAMESPACE KIND/NAME...

secret() { # NAMESPACE POSTGRES_URI: what the chart asks for
  kubectl create secret generic chronos -n "$1" --from-literal=postgres-uri="$2" --from-literal=token="$token" \
    --from-literal=agent-auth-secret="$agent_secret" --from-literal=wake-token="$wake_token" >/dev/null
}
# The agent of examples/, without the quotas that it has there.
agent() { sed '/^  maxActiveAlarms\|^  minIntervalSeconds/d' examples/agent.yaml | kubectl apply -n "$1" -f - >/dev/null; } # NAMESPACE
alarm() { # NAMESPACE NAME LINE...: an Alarm of that agent
  local namespace=$1 name=$2; shift 2
  { printf '%s\n' 'apiVersion: chronos.dev/v1alpha1' 'kind: Alarm' "metadata: {name: $name}" 'spec:' "  owner: $did" "  label: $name" "  wakeMessage: From $name."
    printf '  %s\n' "$@"; } | kubectl apply -n "$namespace" -f - >/dev/null
}

# ---- wakes ----

at_router() { in_node curl -fsS --max-time 20 "$@"; }
wakes() { at_router --get "http://$router:8088/wakes" --data-urlencode "label=$1"; } # LABEL
wake_count() { wakes "$1" | jq -s --arg name "$1" '[.[] | select(.body.label == $name)] | length'; } # LABEL, exactly that one
woken() { [ "$(wake_count "$1")" -ge "${2:-1}" ]; }        # LABEL [TIMES]
behave() { at_router -X PUT "http://$router:8088/behaviour" -d "$1"; } # JSON

# ---- load ----

under_agent() { in_node env CHRONOS_TOKEN="$token" CHRONOS_AGENT="$principal" python3 -B testbed/e2e/agent.py "$@"; }
api_url() { echo "http://$(cluster_ip "$1" chronos):9096"; } # NAMESPACE

# load NAMESPACE LABEL COUNT STEP: makes the alarms; the first is due in LOAD_LEAD s; sets first_due and last_due
load() {
  local dues began
  [ -n "${principal-}" ] || principal=$(in_node examples/sign-in.sh "$(api_url "$1")" "$token") || fail "the agent signs in"
  began=$(now_ms)
  dues=$(under_agent spread "$(api_url "$1")" "$2" "$3" "$LOAD_LEAD" "$4") || fail "$3 alarms are made"
  read -r first_due last_due <<<"$dues"
  tell "$3 alarms made in $(seconds_since "$began") s, due over $(awk -v a="$first_due" -v b="$last_due" 'BEGIN { printf "%.0f", b - a }') s"
}
now() { awk -v ms="$(now_ms)" 'BEGIN { printf "%.3f", ms / 1000 }'; }
before() { awk -v a="$(now)" -v b="$1" 'BEGIN { exit !(a < b) }'; } # INSTANT
after() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a + b }'; } # INSTANT SECONDS
wait_until() { while before "$1"; do pause 0.2; done; }    # INSTANT
all_woken() { [ "$(wakes "$1 " | jq -r .body.label | sort -u | wc -l)" -ge "$2" ]; } # LABEL COUNT

# judge LABEL COUNT [FAULT]: all came, none early, repeats under one id; the figures are in $judged
judge() {
  local late
  until_true "$((FAILOVER_SECONDS + 30))" "all $2 wakes of '$1' arrive" all_woken "$1" "$2"
  judged=$(wakes "$1 " | python3 -B testbed/e2e/agent.py judge "$@") || fail "the wakes of '$1' are as promised"
  late=$(judged late_max_s)
  fact "$2 of $2 wakes, late by $(judged late_median_ms) ms (median), $(judged late_p99_ms) ms (99 %), $late s (most)"
}
judged() { jq -r ".$1" <<<"$judged"; }
at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; } # FOUND LIMIT

