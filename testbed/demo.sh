#!/usr/bin/env bash
# testbed/demo.sh [--kubeconfig FILE]    what Chronos does, on a real API server and a real Postgres
#
# An Alarm as YAML, its wake, its status; an alarm made over HTTP by an agent that signs in; and the same wake again after
# the replica that was delivering it was killed. Every step is asserted: the first that does not hold ends the demo with
# status 1 and its name. On a terminal everything then stays up to be played with until Enter; otherwise, and with CI=true,
# it ends there. Ctrl-C ends it at any moment. Nothing is left behind.
#
# With --kubeconfig (`make demo KUBECONFIG=FILE`) that cluster is used instead of one made for the occasion: the CRDs are
# applied if there are none, everything else happens in a namespace of its own, and both are removed at the end.
# shellcheck disable=SC2317  # functions that await and trap call
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh

given=''
case "$# ${1-}" in
  '0 ') ;;
  '2 --kubeconfig') given=$2 ;;
  *) die "usage: demo.sh [--kubeconfig FILE]" ;;
esac
: "${CARGO_TARGET_DIR:?make sets it: use make demo}"
inherited=${KUBECONFIG-}
# Nothing of the person's own settings bends what is shown, and nobody's cluster is touched unasked.
unset KUBECONFIG
for name in "${!CHRONOS_@}" "${!OTEL_@}"; do unset "$name"; done

# ---- what it looks like ----

live='' bold='' dim='' green='' red='' cyan='' plain=''
[ ! -t 1 ] || [ "${TERM-}" = dumb ] || live=1
if [ -n "$live" ] && [ -z "${NO_COLOR-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' cyan=$'\e[36m' plain=$'\e[0m'
fi
clear_line() { [ -z "$live" ] || printf '\r\e[K'; }
heading=''
step() { heading=$1; printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
text() { printf '  %s\n' "$@"; }
done_() { clear_line; printf '  %s✓%s %s\n' "$green" "$plain" "$1"; }
fail() { clear_line; printf '\n%s✗ not as promised, in step "%s": %s%s\n' "$red" "$heading" "$1" "$plain" >&2; exit 1; }
# show COMMAND...: the command as a person would type it, then what it prints
show() { printf '  %s$ %s%s\n' "$bold" "$*" "$plain"; "$@" | sed 's/^/  /'; }
# turn TEXT: the line that says what is waited for; on a terminal the only one, on and on in its place
wheel=0
turn() {
  local frames='⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏'
  [ -z "$live" ] || { clear_line; printf '  %s%s%s %s' "$cyan" "${frames:wheel++ % 10:1}" "$plain" "${1:0:$((${COLUMNS:-80} - 6))}"; }
}

# await SECONDS WHAT COMMAND...: looks again and again, and says what did not come true
await() {
  local seconds=$1 what=$2 from=$SECONDS pid; shift 2
  until "$@"; do
    for pid in "${watched[@]}"; do ! gone "$pid" || fail "a process has ended that was needed ($what)"; done
    [ $((SECONDS - from)) -lt "$seconds" ] || fail "$what, within $seconds s"
    [ $((SECONDS - from)) -lt 2 ] || turn "$what … $((SECONDS - from)) s"
    pause 0.1
  done
  clear_line
}

# build WHAT COMMAND...: takes minutes the first time. In a session of its own, so that all of it can be ended; its stdout is in $work/said
build() {
  local what=$1 from=$SECONDS told=0 last; shift
  [ -n "$live" ] || text "… building $what"
  setsid "$@" >"$work/said" 2>"$work/job.log" </dev/null & job=$!
  until gone "$job"; do
    if [ -n "$live" ]; then
      last=$(tail -n 1 "$work/job.log" | tr -d '\r' | sed 's/^ *//; s/^testbed: //')
      turn "building $what, $((SECONDS - from)) s  $last"
    elif [ $((SECONDS - from)) -ge $((told + 30)) ]; then
      told=$((SECONDS - from)); text "… building $what, $told s so far"
    fi
    pause 0.1
  done
  if ! wait "$job"; then job=''; clear_line; tail -n 30 "$work/job.log" >&2; fail "$what can be built"; fi
  job=''
  done_ "$what, built in $((SECONDS - from)) s"
}

# ---- what is started, and how it ends ----

work='' job='' router_pid='' postgres_pid='' controlplane_pid='' replica_pids=(0 '' '') watched=()
namespace='' made_crds=''

end() { # PID...: TERM to each with all that it has started, and after 10 s KILL
  local pid i
  for pid; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  for pid; do
    for ((i = 0; i < 100; i++)); do ! gone "$pid" || break; pause 0.1; done
    gone "$pid" || kill -KILL -- "-$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}

leave_cluster() { # the rows go with the database: nobody has to cancel them, so we lift the finalizers ourselves
  local object others
  clear_line; text "${dim}removing ${namespace:+namespace $namespace}${made_crds:+${namespace:+ and }the CRDs} …$plain"
  if [ -n "$namespace" ]; then
    for object in $(kubectl get alarms,agents -n "$namespace" -o name 2>/dev/null); do
      kubectl patch -n "$namespace" "$object" --type=merge -p '{"metadata": {"finalizers": null}}' >/dev/null 2>&1 || true
    done
    kubectl delete namespace "$namespace" --timeout=60s >/dev/null || say "namespace $namespace is still there: look after it"
  fi
  [ -n "$made_crds" ] || return 0
  # Only what is certain: with a definition goes every object of it.
  if ! others=$(kubectl get alarms,agents --all-namespaces -o name); then
    say "the CRDs stay: it cannot be seen whether somebody else has Alarms or Agents"
  elif [ -n "$others" ]; then
    say "the CRDs stay: somebody has made Alarms or Agents meanwhile"
  else
    kubectl delete -f crds/ >/dev/null || say "the CRDs are still there: look after them"
  fi
}

# Called by the traps themselves, not by way of `exit`: a signal that comes as the shell is about to leave would pass it by.
clean_up() { # STATUS
  trap '' INT TERM HUP PIPE
  trap - EXIT
  set +e
  local status=$1 log
  clear_line
  if [ -n "$work" ]; then
    if [ "$status" = 1 ]; then
      for log in "$work"/replica*.log; do [ ! -e "$log" ] || { say "the end of ${log##*/}:"; tail -n 8 "$log" >&2; }; done
    fi
    # The router, too: a delivery that waits for it would hold up its dispatcher.
    # shellcheck disable=SC2086  # words
    end $job $router_pid ${replica_pids[1]} ${replica_pids[2]}
    [ -z "$namespace$made_crds" ] || leave_cluster
    # shellcheck disable=SC2086  # words
    end $controlplane_pid $postgres_pid
    rm -rf "$work"
  fi
  exit "$status"
}
trap 'clean_up $?' EXIT
trap 'clean_up 130' INT
trap 'clean_up 143' TERM HUP
trap 'clean_up 141' PIPE                                    # nobody reads on, `make demo | head` say: the end, too

# ---- 1 ----

step "Chronos: an alarm from YAML to wake, on a real API server and a real Postgres"
text "Half a minute once everything is built. Ctrl-C ends it at any moment and leaves nothing behind."
if [ -z "$given" ] && [ -n "$inherited" ]; then
  text "KUBECONFIG of your environment is not used: the demo makes a control plane of its own. To show it on your" \
    "cluster, say so: make demo KUBECONFIG=$inherited"
fi

step "1. Start it"
# Postgres runs as another user when we are root: a directory that others can enter.
work=$(mktemp -d "${TMPDIR:-/tmp}/chronos-demo.XXXXXX")
chmod 755 "$work"
parts=(kubectl)
[ -n "$given" ] || parts=(etcd kube-apiserver kubectl)
build "${parts[*]}" testbed/build.sh "${parts[@]}"
bin=$(<"$work/said")
kubectl() { "$bin/kubectl" "$@"; }
build chronosd testbed/cargo.sh build --locked --bin chronosd
chronosd=$CARGO_TARGET_DIR/debug/chronosd

export TESTBED_PARENT=$$
if [ -z "$given" ]; then
  KUBEBUILDER_ASSETS=$bin setsid testbed/controlplane.sh run "$work/controlplane" >"$work/controlplane.out" </dev/null & controlplane_pid=$!
  watched+=("$controlplane_pid")
fi
setsid testbed/postgres.sh obey "$work/postgres" >"$work/postgres.out" <&"$never" & postgres_pid=$!
watched+=("$postgres_pid")

token=$(openssl rand -hex 16) wake_token=$(openssl rand -hex 16) agent_secret=$(openssl rand -hex 16)
DEMO_LIVE=$live DEMO_COLOUR=${bold:+1} setsid setpriv --pdeathsig TERM -- python3 testbed/demo-router.py "$work" "$wake_token" & router_pid=$!
watched+=("$router_pid")

await 60 "Postgres starts" test -s "$work/postgres.out"
database=$(sed -n 's/^ready //p' "$work/postgres.out")/postgres
done_ "Postgres, with fsync on: what it has committed, it keeps"
if [ -z "$given" ]; then
  await 120 "the API server starts" test -s "$work/controlplane.out"
  export KUBECONFIG=$work/controlplane/kubeconfig
  done_ "etcd and kube-apiserver $(kubectl version -o json | jq -r .serverVersion.gitVersion)"
else
  # One file, one context, whatever was given; readable by us alone.
  (umask 077; KUBECONFIG=$given kubectl config view --raw --flatten --minify >"$work/kubeconfig") || fail "$given is a kubeconfig with a current context"
  export KUBECONFIG=$work/kubeconfig
  version=$(kubectl version --request-timeout=10s -o json 2>"$work/job.log" | jq -er .serverVersion.gitVersion) ||
    { cat "$work/job.log" >&2; fail "the cluster of $given answers"; }
  done_ "your cluster: $(kubectl config view -o jsonpath='{.clusters[0].cluster.server}'), Kubernetes $version"
  # Another operator would serve our Alarms, too, with another database behind it.
  busy=$(kubectl get leases --all-namespaces -o json | jq -r --arg since "$(date -u -d '-1 minute' +%FT%TZ)" '.items[]
    | select(.metadata.name == "chronos-controller" and .spec.renewTime > $since) | .metadata.namespace') || fail "Leases can be listed"
  [ -z "$busy" ] || fail "no other Chronos is at work there, but one is, in namespace $busy: choose another cluster"
fi

known=$(kubectl get crd alarms.chronos.dev agents.chronos.dev --ignore-not-found -o name) || fail "definitions (CRDs) can be read"
if [ "$(wc -w <<<"$known")" = 2 ]; then
  done_ "the CRDs of Alarm and Agent are there already"
else
  # Ours to remove only if there was none of them.
  [ -z "$given" ] || [ -n "$known" ] || made_crds=1
  kubectl apply -f crds/ >/dev/null
  kubectl wait --for=condition=Established -f crds/ --timeout=30s >/dev/null
  done_ "the CRDs of Alarm and Agent"
fi
if [ -n "$given" ]; then
  fresh=chronos-demo-$(openssl rand -hex 3)
  kubectl create namespace "$fresh" >/dev/null || fail "namespace $fresh can be made"
  namespace=$fresh                                          # from here on it is ours to remove
  kubectl config set-context --current --namespace="$namespace" >/dev/null
  done_ "namespace $namespace, removed at the end"
fi

await 10 "the router listens" test -s "$work/router.url"
export CHRONOS_POSTGRES_URI=$database
"$chronosd" migrate >"$work/migrate.log" 2>&1 || { cat "$work/migrate.log" >&2; fail "the schema is made"; }

# Both deliver (`active`), so that nobody waits for a Lease of 15 s when one is killed, and both beat twice a second instead
# of every 5 s: a dead one's wakes are taken over after three beats.
replica() { # N
  CHRONOS_TOKEN=$token CHRONOS_AGENT_AUTH_SECRET=$agent_secret CHRONOS_WAKE_TOKEN=$wake_token \
    CHRONOS_ROUTER_WAKE_URL=$(<"$work/router.url") CHRONOS_PORT=0 CHRONOS_METRICS_PORT=0 \
    CHRONOS_DISPATCH_MODE=active CHRONOS_BEAT_MS=500 CHRONOS_SHUTDOWN_SECONDS=2 \
    CHRONOS_NAMESPACE=${namespace:-default} CHRONOS_WATCH_NAMESPACES=${namespace:-default} \
    setsid setpriv --pdeathsig TERM -- "$chronosd" run --kubeconfig "$KUBECONFIG" >"$work/replica$1.log" 2>&1 </dev/null &
  replica_pids[$1]=$!
  watched+=("${replica_pids[$1]}")
}
# listens N FIELD: where replica N listens, by its own word
listens() { jq -Rr --arg field "$2" 'fromjson? | select(.fields.message // .message | test(" runs$")) | (.fields[$field] // .[$field])' "$work/replica$1.log"; }
runs() { [ -n "$(listens "$1" probes 2>/dev/null)" ] && curl -fs "http://$(listens "$1" probes)/readyz" >/dev/null; }
replica 1; replica 2
await 60 "replica 1 is ready" runs 1
await 60 "replica 2 is ready" runs 2
apis=(0 "http://$(listens 1 api)" "http://$(listens 2 api)") probes=(0 "http://$(listens 1 probes)" "http://$(listens 2 probes)")
done_ "two replicas of chronosd, each operator, dispatcher and HTTP facade in one (pids ${replica_pids[1]} and ${replica_pids[2]})"
done_ "a router that prints each wake it is sent"

# ---- 2 ----

step "2. Alarms are resources"
sed -n '/^---$/,$p' examples/alarms.yaml | sed -e 1d -e "s/^\( *[A-Za-z]*:\)/$cyan\1$plain/" -e "s/\(#.*\)$/$dim\1$plain/" -e 's/^/  │ /'
text "Its owner is an Agent that an administrator has enrolled (examples/agent.yaml)."
show kubectl apply -f examples/agent.yaml -f examples/alarms.yaml
field() { kubectl get alarm "$1" -o "jsonpath={$2}"; }
phase_is() { [ "$(field "$1" .status.phase 2>/dev/null)" = "$2" ]; }
# Stored, not Active: on a slow machine the once alarm may have fired before we look.
both_stored() { phase_is daily-summary Active && [ -n "$(field confirm-transaction .status.alarmId)" ]; }
await 30 "both Alarms are stored" both_stored
show kubectl get alarms
[ -n "$(field daily-summary .status.nextFireTime)" ] || fail "the cron alarm shows when it fires next"

# ---- 3 ----

step "3. At its instant the wake goes out"
# wake LABEL [N]: the Nth wake with that label, as the router wrote it down
wake() { [ ! -e "$work/wakes" ] || jq -c --arg name "$1" 'select(.body.label == $name)' "$work/wakes" | sed -n "${2:-1}p"; }
woken() { [ -n "$(wake "$@")" ]; }
due=$(field confirm-transaction .status.nextFireTime)
[ -n "$due" ] || due=$(field confirm-transaction .status.lastFiredTime)
due=$(date -d "${due:-now}" +%s)
left='' from=$SECONDS
until woken "confirm transaction"; do
  [ $((SECONDS - from)) -lt 30 ] || fail "the wake arrives, within 30 s"
  for pid in "${watched[@]}"; do ! gone "$pid" || fail "a process has ended that was needed"; done
  if [ "$left" != $((due - $(date +%s))) ]; then
    left=$((due - $(date +%s)))
    if [ -n "$live" ]; then clear_line; printf '  next wake in %s%s s%s' "$bold" "$left" "$plain"; elif [ "$left" -gt 0 ]; then text "next wake in $left s"; fi
  fi
  pause 0.1
done
[ "$(wake "confirm transaction" | jq -r .body.alarm_id)" = "$(field confirm-transaction .status.alarmId)" ] || fail "it is that alarm's wake"
[ "$(wake "confirm transaction" | jq -c .body.payload.tx)" = '"0xabc"' ] || fail "the payload comes back"

# ---- 4 ----

step "4. The resource tells what has become of it"
await 30 "the once Alarm is Fired" phase_is confirm-transaction Fired
show kubectl get alarms
show kubectl wait --for=condition=Ready alarm/confirm-transaction --timeout=10s
[ "$(field confirm-transaction .status.firedCount)" = 1 ] || fail "it fired once"

# ---- 5 ----

step "5. The same over HTTP, by an agent that signs in with its key"
call() { curl -fsS -H "Authorization: Bearer $token" -H "X-Chronos-Agent: $agent" -H 'Content-Type: application/json' "$@"; }
# shellcheck disable=SC2016  # as it would be typed
printf '  %s$ agent=$(examples/sign-in.sh %s $token)%s\n' "$bold" "${apis[1]}" "$plain"
agent=$(examples/sign-in.sh "${apis[1]}" "$token")
body='{"kind": "once", "delay_seconds": 2, "wake_message": "Ask how it went.", "label": "from an agent"}'
# shellcheck disable=SC2016  # as it would be typed
printf '  %s$ curl -H "Authorization: Bearer $token" -H "X-Chronos-Agent: $agent" -H "Content-Type: application/json" \\\n      %s/v1/alarms \\\n      -d '"'%s'"'%s\n' \
  "$bold" "${apis[1]}" "$body" "$plain"
made=$(call "${apis[1]}/v1/alarms" -d "$body")
jq -c '.data | {id, status, next_fire_at}' <<<"$made" | sed 's/^/  /'
await 30 "the agent's wake arrives" woken "from an agent"
fired() { [ "$(call "${apis[1]}/v1/alarms/$(jq -r .data.id <<<"$made")" | jq -r .data.status)" = fired ]; }
await 30 "the alarm is fired" fired
# The agent sees its resources' alarms too, but only the resource may change them.
managed=$(field daily-summary .status.alarmId)
refused=$(curl -sS -X DELETE -H "Authorization: Bearer $token" -H "X-Chronos-Agent: $agent" "${apis[1]}/v1/alarms/$managed")
[ "$(jq -r .error.code <<<"$refused")" = conflict ] || fail "a resource's alarm cannot be cancelled over HTTP"

# ---- 6 ----

step "6. A deleted resource is silent"
show kubectl delete alarm daily-summary --timeout=30s
status=$(call "${apis[1]}/v1/alarms/$managed" | jq -r .data.status)
[ "$status" = cancelled ] || fail "its alarm is cancelled, not $status"
done_ "its alarm in Postgres is $status"

# ---- 7 ----

step "7. Kill the replica that is delivering: the same wake again"
touch "$work/slow"
text "The router is slow this time, and the replica that waits for its answer is killed."
made=$(call "${apis[2]}/v1/alarms" -d '{"kind": "once", "delay_seconds": 1, "label": "survivor", "wake_message": "Settle the invoice."}')
await 30 "the wake arrives" woken survivor
# in_flight N: is replica N waiting for the router?
in_flight() { curl -fs "${probes[$1]}/metrics" | grep -q '^chronos_deliveries_in_flight [1-9]'; }
victim=''
one_delivers() { if in_flight 1; then victim=1; elif in_flight 2; then victim=2; else return 1; fi; }
await 10 "one of the two replicas says that it is delivering" one_delivers
survivor=$((3 - victim))
killed=${replica_pids[$victim]}
for i in "${!watched[@]}"; do [ "${watched[i]}" != "$killed" ] || unset "watched[i]"; done
printf '  %s$ kill -9 %s%s   %s# replica %s%s\n' "$bold" "$killed" "$plain" "$dim" "$victim" "$plain"
from=$SECONDS
{ kill -KILL "$killed"; wait "$killed"; } 2>/dev/null || true
replica_pids[victim]=''
await 60 "replica $survivor delivers it" woken survivor 2
took=$((SECONDS - from))
first=$(wake survivor 1 | jq -r .delivery_id) second=$(wake survivor 2 | jq -r .delivery_id)
text "            delivery id"
text "replica $victim   $first   killed before the answer"
text "replica $survivor   $second   $took s later"
[ "$first" = "$second" ] || fail "both have the same delivery id"
settled() { [ "$(call "${apis[$survivor]}/v1/alarms/$(jq -r .data.id <<<"$made")" | jq -r .data.status)" = fired ]; }
await 30 "the alarm is fired" settled
done_ "the same id: a router that knows it does nothing twice"
text "${dim}Here replicas beat every 0.5 s; at the default of 5 s it takes about 20 s.$plain"

# ---- the end ----

step "As promised."
text "Read on: README.md, docs/guides/install.md (a cluster), docs/guides/agents.md (over HTTP), docs/guides/router.md (take wakes)"
if [ "${CI-}" = true ] || [ -z "$live" ] || [ ! -t 0 ]; then exit 0; fi
heading="play with it"
cat <<TRY

  It is still up: wakes are printed here. In another terminal:

    export KUBECONFIG=$KUBECONFIG
    alias kubectl=$bin/kubectl
    kubectl explain alarm.spec
    kubectl get alarms -w
    kubectl create -f - <<<'{"apiVersion": "chronos.dev/v1alpha1", "kind": "Alarm", "metadata": {"generateName": "mine-"}, "spec": {
      "owner": "did:matrix:11111111-2222-3333-4444-555555555555:d75a980182b10ab7", "delaySeconds": 10, "wakeMessage": "Hello."}}'
    ${apis[$survivor]}/docs      in a browser: every operation over HTTP

  ${bold}Enter ends it.${plain}
TRY
until read -r -t 1 || [ $? -le 128 ]; do                     # Enter, or Ctrl-D; above 128: the second is over
  for pid in "${watched[@]}"; do ! gone "$pid" || fail "a process has ended that was needed"; done
done
