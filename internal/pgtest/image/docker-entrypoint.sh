#!/bin/sh
# The part of the official PostgreSQL image's entry point that tests rely on:
# POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB, POSTGRES_INITDB_ARGS,
# POSTGRES_HOST_AUTH_METHOD, PGDATA, /docker-entrypoint-initdb.d/*.sh and *.sql;
# on first start the server runs once for itself, then once more for everybody,
# so "database system is ready to accept connections" is logged twice.
set -eu

case ${1:-} in -*) set -- postgres "$@" ;; esac
[ "${1:-}" = postgres ] || exec "$@"

if [ "$(id -u)" = 0 ]; then
	mkdir -p "$PGDATA" /var/run/postgresql
	chown -R postgres:postgres "$PGDATA" /var/run/postgresql
	chmod 700 "$PGDATA"
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}

run_init_scripts() {
	for script in /docker-entrypoint-initdb.d/*; do
		case $script in
		*.sh) . "$script" ;;
		*.sql) psql -v ON_ERROR_STOP=1 --no-psqlrc -q -U "$user" -d "$database" -f "$script" ;;
		esac
	done
}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	if [ -z "${POSTGRES_PASSWORD:-}" ] && [ "$method" != trust ]; then
		echo "docker-entrypoint.sh: set POSTGRES_PASSWORD, or POSTGRES_HOST_AUTH_METHOD=trust" >&2
		exit 1
	fi
	password=$(mktemp)
	printf '%s\n' "${POSTGRES_PASSWORD:-unused}" >"$password"
	# Word splitting of POSTGRES_INITDB_ARGS is what it is for.
	# shellcheck disable=SC2086
	initdb -D "$PGDATA" -U "$user" --pwfile="$password" --auth-local=trust --auth-host=scram-sha-256 \
		--encoding=UTF8 ${POSTGRES_INITDB_ARGS:-}
	rm -f "$password"
	printf 'host all all all %s\n' "$method" >>"$PGDATA/pg_hba.conf"
	pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=''" start
	if [ "$database" != postgres ]; then
		echo "CREATE DATABASE :\"db\";" | psql -v ON_ERROR_STOP=1 -v db="$database" --no-psqlrc -q -U "$user" -d postgres
	fi
	run_init_scripts
	pg_ctl -D "$PGDATA" -m fast -w stop
	# The official image has listen_addresses = '*' in its sample file.
	grep -q "^listen_addresses" "$PGDATA/postgresql.conf" || echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
fi

exec "$@"
