#!/usr/bin/env bash
# testbed/postgres.sh run DIR     a Postgres server on loopback, in the foreground, until told to stop
#
# DIR must not exist yet; it is removed at the end. `run` prints one line, `ready URI`, to which a database's name is to be
# added: `URI/postgres`. It ends on TERM, INT or HUP, or when the process that started it is gone (TESTBED_PARENT: its pid,
# as for controlplane.sh). Made for tests: fsync is off, nothing survives.
set -euo pipefail
cd_from=$PWD
cd "$(dirname "$0")"
. ./lib.sh
cd "$cd_from"

READY_SECONDS=60       # 1 s on an idle machine
USER_NAME=postgres     # Postgres refuses to run as root; Debian's package brings this user along

if [ $# != 2 ] || [ "$1" != run ]; then die "usage: postgres.sh run DIR"; fi
dir=$2
starter=${TESTBED_PARENT:-$PPID}
! starter_gone || die "process $starter, which is said to have started this one, is gone"

bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
[ -x "$bin/initdb" ] || bin=$(dirname "$(command -v initdb || die "no Postgres on this machine: testbed/setup.sh test")")
as_user=(env)
# The kernel forgets a parent-death signal when the user changes: it is asked for once more.
[ "$(id -u)" != 0 ] || as_user=(setpriv --reuid="$USER_NAME" --regid="$USER_NAME" --init-groups --pdeathsig KILL --)

postgres_pid=''
stop_child() { # QUIT: at once, and its own children with it
  [ -n "$postgres_pid" ] || return 0
  kill -QUIT "$postgres_pid" 2>/dev/null || true
  wait "$postgres_pid" 2>/dev/null || true
}
mkdir "$dir"
dir=$(cd "$dir" && pwd)
trap 'stop_child; cd /; rm -rf "$dir"' EXIT
trap 'exit 0' TERM INT HUP
trap 'exit 1' PIPE                                          # nobody reads `ready`: the starter is gone
cd "$dir"
[ "$(id -u)" != 0 ] || chown "$USER_NAME": "$dir"

password=$(openssl rand -hex 16)
(umask 077; echo "$password" >password)
[ "$(id -u)" != 0 ] || chown "$USER_NAME": password
"${as_user[@]}" "$bin/initdb" -D data -U chronos -A scram-sha-256 --pwfile=password -E UTF8 --no-locale --no-sync >initdb.log 2>&1 ||
  { cat initdb.log >&2; die "initdb failed"; }

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
start postgres "${as_user[@]}" "$bin/postgres" -D "$dir/data" -c listen_addresses=127.0.0.1 -c port="$port" -c unix_socket_directories= \
  -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=400 -c shared_buffers=128MB
deadline=$((SECONDS + READY_SECONDS))
until "$bin/pg_isready" -q -h 127.0.0.1 -p "$port"; do
  if gone "$postgres_pid" || [ "$SECONDS" -ge "$deadline" ]; then tail -n 15 postgres.log >&2; die "Postgres did not start"; fi
  pause 0.05
done
echo "ready postgres://chronos:$password@127.0.0.1:$port"

until starter_gone; do
  ! gone "$postgres_pid" || { tail -n 15 postgres.log >&2; die "Postgres died"; }
  pause 0.2
done
