#!/usr/bin/env bash
# testbed/postgres-image.sh ARCHIVE   makes an image postgres:TAG from the Postgres that Debian has put on this machine, as an
# OCI archive; prints TAG, which is the major version
#
# For the chart's trial Postgres in a cluster that cannot pull images. It takes the variables of the official image that the
# chart sets (testbed/postgres-image/entrypoint.sh) and runs with a read-only root as any user that is in its /etc/passwd.
# The files are those that dpkg knows; libraries are what the programs ask for.
set -euo pipefail
archive=$(realpath -m "${1:?usage: postgres-image.sh ARCHIVE}")
cd "$(dirname "$0")"
. ./lib.sh

TOOLS=(bash cat chmod id ls mkdir rm sh sleep)             # what probes and people call
home=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
home=${home%/bin} major=${home##*/}
[ -x "$home/bin/initdb" ] || die "no Postgres on this machine: testbed/setup.sh test"

work=$(mktemp -d "${TMPDIR:-/tmp}/chronos-postgres-image.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
root=$work/root
mkdir -p "$root"/{bin,lib,lib64,etc,tmp,var/run/postgresql,var/lib/postgresql,usr/share,usr/lib}
chmod 1777 "$root/tmp" "$root/var/run/postgresql" "$root/var/lib/postgresql"

# Without the compiler for queries, which brings 100 MB of LLVM, and what only builds extensions.
mkdir -p "$root$home" "$root/usr/share/postgresql" "$root/usr/lib/locale"
cp -a "$home/bin" "$home/lib" "$root$home/"
rm -rf "$root$home"/lib/{bitcode,pgxs,llvmjit*}
cp -a "/usr/share/postgresql/$major" "$root/usr/share/postgresql/"
find "$root/usr/share/postgresql" -type l -delete          # manual pages
cp -a /usr/share/zoneinfo "$root/usr/share/"
cp -a /usr/lib/locale/C.utf8 "$root/usr/lib/locale/" 2>/dev/null || true
for tool in "${TOOLS[@]}"; do cp -L "$(command -v "$tool")" "$root/bin/"; done
install -m 755 postgres-image/entrypoint.sh "$root/entrypoint.sh"

# Every library, at the path where its user looks for it.
find "$root$home" "$root/bin" -type f \( -perm -u+x -o -name '*.so' \) -print0 | xargs -0 ldd 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }' | sort -u |
  while read -r library; do install -D "$(realpath "$library")" "$root$library"; done

# Debian's image of Postgres runs as 999; 65532 is the user of Chronos' own image.
printf '%s\n' 'root:x:0:0:root:/:/bin/bash' 'postgres:x:999:999::/var/lib/postgresql:/bin/bash' 'nonroot:x:65532:65532::/:/bin/bash' >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'postgres:x:999:' 'nonroot:x:65532:' >"$root/etc/group"

oci_archive "$work" "$root" "$major" "$archive" 1970-01-01T00:00:00Z --config.entrypoint /entrypoint.sh --config.cmd postgres --config.user 999:999 \
  --config.env "PATH=$home/bin:/bin" --config.env LANG=C.UTF-8 --config.env PGDATA=/var/lib/postgresql/data --config.stopsignal SIGINT
echo "$major"
