#!/bin/bash
# Runs tests on each PostgreSQL that can be had on this machine, one after the
# other, and prints a table.
#
#   matrix.sh COMMAND...          such as: matrix.sh go test -count=1 ./...
#
#   PG_BINS    folders of server programs, each tried through PGLOCK_PG_BIN;
#              default: /usr/lib/postgresql/*/bin
#   PG_IMAGES  images, each tried through PGLOCK_PG_IMAGE and testcontainers;
#              default: the pgtest-postgres images that Docker has
#   SUITES     suites of Debian whose images are built first with
#              image/build.sh if they are missing: bookworm, trixie, sid
#   OUT        folder for the logs; default: a temporary one
#
# An empty PG_BINS or PG_IMAGES, as opposed to none, means that there are none.
set -uo pipefail
shopt -s nullglob
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
[ $# -gt 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

images() { docker images --format '{{.Repository}}:{{.Tag}}' 'pgtest-postgres' 2>/dev/null | sort -t: -k2n; }
for suite in ${SUITES:-}; do
	case $suite in bookworm) major=15 ;; trixie) major=17 ;; sid) major=18 ;; *) major= ;; esac
	if [ -z "$major" ] || ! images | grep -qx "pgtest-postgres:$major"; then "$here/image/build.sh" "$suite" || exit; fi
done
bins=${PG_BINS-$(echo /usr/lib/postgresql/*/bin)}
images=${PG_IMAGES-$(images)}
if [ -z "${bins// }${images// }" ]; then
	echo "matrix: no PostgreSQL: set PG_BINS to folders of server programs, PG_IMAGES to images, or SUITES=\"bookworm trixie sid\" to build images with Docker" >&2
	exit 2
fi

table= status=0 n=0
run() { # version, variable, value, command...
	local version=$1 variable=$2 value=$3 began=$SECONDS log verdict
	shift 3
	n=$((n + 1)) log=$out/$n.log
	echo "== $version, $variable=$value"
	if env -u DATABASE_URL -u PGLOCK_PG_BIN -u PGLOCK_PG_IMAGE "$variable=$value" "$@" >"$log" 2>&1; then verdict=ok; else
		verdict=FAIL status=1
		grep -E '^(\s*--- FAIL|FAIL|panic:)' "$log"
	fi
	grep -E '^ok ' "$log"
	table+="$version|${variable#PGLOCK_PG_}|$verdict|$(grep -cE '^--- PASS' "$log")|$(grep -cE '^--- FAIL' "$log")|$((SECONDS - began)) s|$log"$'\n'
}
for bin in $bins; do
	version=$("$bin/postgres" --version 2>&1) || { echo "matrix: $bin: $version" >&2; status=1; continue; }
	run "$version" PGLOCK_PG_BIN "$bin" "$@"
done
for image in $images; do
	version=$(docker run --rm --entrypoint sh "$image" -c 'postgres --version' 2>&1) || { echo "matrix: $image: $version" >&2; status=1; continue; }
	run "$version" PGLOCK_PG_IMAGE "$image" "$@"
done
echo
{ echo "server|through|result|passed|failed|time|log"; printf %s "$table"; } | column -t -s'|'
exit $status
