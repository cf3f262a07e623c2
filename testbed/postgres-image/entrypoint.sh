#!/bin/bash
# What the official image's entrypoint does with the same variables, as far as the chart's trial Postgres needs it: on an empty
# PGDATA a superuser POSTGRES_USER with the password in POSTGRES_PASSWORD_FILE (or POSTGRES_PASSWORD), a database POSTGRES_DB,
# logins from everywhere by password; then the server. Writes to PGDATA, /tmp and /var/run/postgresql alone.
set -euo pipefail

user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
export PGDATA=${PGDATA:-/var/lib/postgresql/data}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
  if [ -n "${POSTGRES_PASSWORD_FILE-}" ]; then POSTGRES_PASSWORD=$(<"$POSTGRES_PASSWORD_FILE"); fi
  [ -n "${POSTGRES_PASSWORD-}" ] || { echo "POSTGRES_PASSWORD_FILE or POSTGRES_PASSWORD is needed to make a database" >&2; exit 1; }
  read -r -a more <<<"${POSTGRES_INITDB_ARGS-}"
  initdb --username="$user" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --auth=scram-sha-256 --encoding=UTF8 --no-locale "${more[@]}"
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  if [ "$database" != postgres ]; then
    echo "CREATE DATABASE \"$database\"" | postgres --single -D "$PGDATA" postgres
  fi
fi
unset POSTGRES_PASSWORD
[ "${1-}" != postgres ] || shift
exec postgres -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql "$@"
