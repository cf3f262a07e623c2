#!/usr/bin/env bash
# examples/sign-in.sh API_URL TRANSPORT_TOKEN    signs in as the agent of examples/agent.yaml, prints its principal token
#
#   agent=$(examples/sign-in.sh http://127.0.0.1:9096 "$token")
#   curl -H "Authorization: Bearer $token" -H "X-Chronos-Agent: $agent" -H "Content-Type: application/json" \
#     http://127.0.0.1:9096/v1/alarms -d '{"kind": "once", "delay_seconds": 10, "wake_message": "Follow up."}'
#
# Needs curl, jq and openssl 3. What an agent does in any language: ask for a challenge, sign its text with the ed25519 key
# that the DID names, trade the signature for a token that holds a day.
set -euo pipefail
[ $# = 2 ] || { echo "usage: sign-in.sh API_URL TRANSPORT_TOKEN" >&2; exit 2; }
api=$1 token=$2

# The first test vector of RFC 8032: a key that everybody knows, for trying things out only.
did=did:matrix:11111111-2222-3333-4444-555555555555:d75a980182b10ab7
public_key=d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a
private_key=9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
call() { # PATH BODY: what the facade answers, or its refusal on stderr
  local answer
  answer=$(curl -sS -H "Authorization: Bearer $token" -H 'Content-Type: application/json' "$api$1" -d "$2")
  jq -e '.ok' <<<"$answer" >/dev/null || { jq -r '.error.message' <<<"$answer" >&2; exit 1; }
  jq '.data' <<<"$answer"
}

# An ed25519 key as openssl reads it: a fixed DER prefix and the 32 bytes.
# shellcheck disable=SC2001  # every two digits, not a fixed text
printf '%b' "$(sed 's/../\\x&/g' <<<"302e020100300506032b657004220420$private_key")" | openssl pkey -inform DER -out "$work/key.pem"

challenge=$(call /v1/agent/auth/challenge "{\"did\": \"$did\"}")
jq -j .message <<<"$challenge" >"$work/message"
signature=$(openssl pkeyutl -sign -rawin -inkey "$work/key.pem" -in "$work/message" | od -An -tx1 | tr -d ' \n')
proof=$(jq --arg key "$public_key" --arg signature "$signature" '{did, nonce, public_key: $key, signature: $signature}' <<<"$challenge")
call /v1/agent/auth/verify "$proof" | jq -r .token
