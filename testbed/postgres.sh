#!/usr/bin/env bash
# testbed/postgres.sh run DIR               a Postgres server on loopback, in the foreground, until told to stop
# testbed/postgres.sh obey DIR [TEMPLATE]   one that is stopped and started again by words on stdin
# testbed/postgres.sh bench DIR             like run, but as somebody sets up a small production server
#
# DIR must not exist yet; it is removed at the end. `run` prints one line, `ready URI`, to which a database's name is to be
# added: `URI/postgres`. It ends on TERM, INT or HUP, or when the process that started it is gone (TESTBED_PARENT: its pid,
# as for controlplane.sh). Made for tests: fsync is off, nothing survives.
#
# `obey` does the same with everything on that keeps committed rows. It reads lines: `stop fast` (as an administrator does)
# and `stop immediate` (as a crash does) answer `stopped`, `start` answers `ready URI` again, with the data and the port
# there were; it ends, too, with its stdin. TEMPLATE is the DIR of another one that is stopped: it begins as a copy of that.
# TESTBED_OFF names a setting that is off all the same, such as fsync. TESTBED_ADDRESS is an address of this machine to listen on
# instead of loopback; the 254 neighbours of it may log in, too.
set -euo pipefail
cd_from=$PWD
cd "$(dirname "$0")"
. ./lib.sh
cd "$cd_from"

READY_SECONDS=60       # 1 s on an idle machine
USER_NAME=postgres     # Postgres refuses to run as root; Debian's package brings this user along

usage='usage: postgres.sh run DIR | obey DIR [TEMPLATE] | bench DIR'
settings=(-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=400 -c shared_buffers=128MB)
segment=1 # MB
case "${1:-} $#" in
  'run 2') ;;
  'bench 2') segment=16 settings=(-c fsync=on -c synchronous_commit=on -c full_page_writes=on -c shared_buffers=2GB -c max_wal_size=4GB -c jit=off) ;;
  'obey 2' | 'obey 3') settings=(-c fsync=on -c synchronous_commit=on -c full_page_writes=on -c max_connections=100 -c shared_buffers=32MB) ;;
  *) die "$usage" ;;
esac
[ -z "${TESTBED_OFF:-}" ] || settings+=(-c "$TESTBED_OFF=off")
mode=$1 dir=$2 template=${3:-} address=${TESTBED_ADDRESS:-127.0.0.1}
[ -z "$template" ] || template=$(cd "$template" && pwd)
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

if [ -n "$template" ]; then
  cp -a "$template/data" "$template/password" .
else
  (umask 077; openssl rand -hex 16 >password)
  [ "$(id -u)" != 0 ] || chown "$USER_NAME": password
  # Small segments of the log: a copy of a template is mostly log otherwise. A server under load would do nothing but change them.
  "${as_user[@]}" "$bin/initdb" -D data -U chronos -A scram-sha-256 --pwfile=password -E UTF8 --no-locale --no-sync --wal-segsize="$segment" \
    >initdb.log 2>&1 || { cat initdb.log >&2; die "initdb failed"; }
  [ "$address" = 127.0.0.1 ] || echo "host all all $address/24 scram-sha-256" >>data/pg_hba.conf
fi
password=$(<password)

# Below the ports that the kernel gives to outgoing connections, or one of those could sit on ours while we are stopped.
port=$(python3 -c '
import random, socket, sys
while True:
    port = random.randrange(12000, 32000)
    try:
        socket.socket().bind((sys.argv[1], port))
    except OSError:
        continue
    print(port)
    break' "$address")

serve() { # until it takes connections; then says so
  local deadline=$((SECONDS + READY_SECONDS))
  start postgres "${as_user[@]}" "$bin/postgres" -D "$dir/data" -c listen_addresses="$address" -c port="$port" \
    -c unix_socket_directories= "${settings[@]}"
  until "$bin/pg_isready" -q -h "$address" -p "$port"; do
    if gone "$postgres_pid" || [ "$SECONDS" -ge "$deadline" ]; then tail -n 15 postgres.log >&2; die "Postgres did not start"; fi
    pause 0.05
  done
  echo "ready postgres://chronos:$password@$address:$port"
}

halt() { # SIGNAL: and waits until it is gone
  kill "-$1" "$postgres_pid"
  wait "$postgres_pid" || true
  postgres_pid=''
  echo stopped
}

obey() { # WORDS
  case "${postgres_pid:+runs }$1" in
    'runs stop fast') halt INT ;;
    'runs stop immediate') halt QUIT ;;
    start) serve ;;
    *) die "cannot obey '$1'" ;;
  esac
}

serve
begun=''
until starter_gone; do
  [ -z "$postgres_pid" ] || ! gone "$postgres_pid" || { tail -n 15 postgres.log >&2; die "Postgres died"; }
  if [ "$mode" != obey ]; then
    pause 0.2
  elif IFS= read -r -t 0.2 words; then
    obey "$begun$words"
    begun=''
  elif [ $? -le 128 ]; then                                 # not for want of time: the end
    exit 0
  else
    begun+=$words                                           # time was up in the middle of a line
  fi
done
