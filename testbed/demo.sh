#!/usr/bin/env bash
# testbed/demo.sh    what Chronos does, on a real API server and a real Postgres
#
# Applies an Agent and two Alarms, shows them, the wake that arrives, the status after it, and an alarm made over HTTP by
# an agent that signs in. Every step is asserted. With CI=true it ends there; otherwise everything stays up to be played
# with until Ctrl-C. Needs KUBEBUILDER_ASSETS (make demo sets it).
# shellcheck disable=SC2317  # functions that until_true and trap call
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh

bin=${KUBEBUILDER_ASSETS:?is not set: use make demo}
# Chronos runs Postgres as another user when we are root: a directory that others can enter.
work=$(mktemp -d "${TMPDIR:-/tmp}/chronos-demo.XXXXXX")
chmod 755 "$work"
export KUBECONFIG=$work/controlplane/kubeconfig
chronosd_pid='' controlplane_pid=''
clean_up() {
  local pid status=$?
  trap - EXIT
  [ "$status" = 0 ] || { echo; say "the demo failed; the end of chronosd's log:"; tail -n 20 "$work/chronosd.log" >&2 || true; }
  for pid in $chronosd_pid $controlplane_pid; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

bold='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { say "not as promised: $*"; exit 1; }
show() { echo "\$ $*"; "$@"; }
kubectl() { "$bin/kubectl" "$@"; }

# until_true SECONDS WHAT COMMAND...: looks again and again, and says what did not come true
until_true() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1)); shift 2
  until "$@"; do
    gone "$chronosd_pid" && fail "chronosd has ended"
    [ "$SECONDS" -lt "$deadline" ] || fail "$what, within $seconds s"
    pause 0.1
  done
}
field() { kubectl get alarm "$1" -o "jsonpath={$2}"; }
phase_is() { [ "$(field "$1" .status.phase 2>/dev/null)" = "$2" ]; }
# wake LABEL: the wake with that label, as chronosd's own router printed it
wake() { jq -c --arg name "$1" 'select(.event == "wake" and .body.label == $name)' "$work/chronosd.out"; }
woken() { [ -n "$(wake "$1")" ]; }

step "1. A control plane (etcd and kube-apiserver) and chronosd with a Postgres of its own"
testbed/cargo.sh build --quiet --locked --bin chronosd
TESTBED_PARENT=$$ testbed/controlplane.sh run "$work/controlplane" >"$work/controlplane.out" & controlplane_pid=$!
until [ -s "$work/controlplane.out" ]; do
  gone "$controlplane_pid" && fail "the control plane has ended"
  pause 0.1
done
setpriv --pdeathsig TERM -- "$CARGO_TARGET_DIR/debug/chronosd" dev --json --port 0 --metrics-port 0 --kubeconfig "$KUBECONFIG" --data-dir "$work/data" \
  >"$work/chronosd.out" 2>"$work/chronosd.log" & chronosd_pid=$!
until_true 60 "chronosd gets ready" test -s "$work/chronosd.out"
ready=$(head -n 1 "$work/chronosd.out")
get() { jq -er ".$1" <<<"$ready"; }
api=$(get api_url) token=$(get token)
is_ready() { curl -fs "$(get metrics_url)/readyz" >/dev/null; }
until_true 60 "/readyz answers ok" is_ready
echo "chronosd serves $api, its database is $(get postgres_uri | sed 's,//.*@,//…@,')"

step "2. Alarms as resources"
show kubectl apply -f examples/agent.yaml -f examples/alarms.yaml
# Stored, not Active: on a slow machine the once alarm may have fired before we look.
both_stored() { phase_is daily-summary Active && [ -n "$(field confirm-transaction .status.alarmId)" ]; }
until_true 30 "both Alarms are stored" both_stored
show kubectl get alarms
[ -n "$(field daily-summary .status.nextFireTime)" ] || fail "the cron alarm shows when it fires next"

step "3. At its instant the wake goes out to the router"
until_true 30 "the wake arrives" woken "confirm transaction"
wake "confirm transaction" | jq '{delivery: .headers["idempotency-key"], wake: .body}'
[ "$(wake "confirm transaction" | jq -r .body.alarm_id)" = "$(field confirm-transaction .status.alarmId)" ] || fail "it is that alarm's wake"
[ "$(wake "confirm transaction" | jq -c .body.payload.tx)" = '"0xabc"' ] || fail "the payload comes back"

step "4. The resource tells what has become of it"
until_true 30 "the once Alarm is Fired" phase_is confirm-transaction Fired
show kubectl get alarms
show kubectl wait --for=condition=Ready alarm/confirm-transaction --timeout=10s
[ "$(field confirm-transaction .status.firedCount)" = 1 ] || fail "it fired once"

step "5. The same over HTTP, by an agent that signs in with its key"
call() { curl -fsS -H "Authorization: Bearer $token" -H 'Content-Type: application/json' "$@"; }
agent=$(examples/sign-in.sh "$api" "$token")
echo "signed in: ${agent:0:24}…"
made=$(call -H "X-Chronos-Agent: $agent" "$api/v1/alarms" -d '{"kind": "once", "delay_seconds": 2, "label": "from an agent", "wake_message": "Follow up."}')
jq -c .data <<<"$made"
until_true 30 "the agent's wake arrives" woken "from an agent"
wake "from an agent" | jq -c '.body | {alarm_id, message, scheduled_for, attempt}'
fired() { [ "$(call -H "X-Chronos-Agent: $agent" "$api/v1/alarms/$(jq -r .data.id <<<"$made")" | jq -r .data.status)" = fired ]; }
until_true 30 "the alarm is fired" fired
# The agent sees its resources' alarms too, but only the resource may change them.
managed=$(field daily-summary .status.alarmId)
refused=$(curl -sS -X DELETE -H "Authorization: Bearer $token" -H "X-Chronos-Agent: $agent" "$api/v1/alarms/$managed")
[ "$(jq -r .error.code <<<"$refused")" = conflict ] || fail "a resource's alarm cannot be cancelled over HTTP"

step "6. A deleted resource is silent"
show kubectl delete alarm daily-summary --timeout=30s
status=$(call -H "X-Chronos-Agent: $agent" "$api/v1/alarms/$managed" | jq -r .data.status)
[ "$status" = cancelled ] || fail "its alarm is cancelled, not $status"
echo "its alarm is $status"

if [ "${CI-}" = true ]; then
  step "Everything as promised."
  exit 0
fi
trap 'exit 0' INT
step "It stays up until Ctrl-C. Try it:"
cat <<TRY
export KUBECONFIG=$KUBECONFIG
$bin/kubectl explain alarm.spec
$bin/kubectl get alarms
tail -f $work/chronosd.out     # the wakes
TRY
until gone "$chronosd_pid"; do pause 1; done
fail "chronosd has ended"
