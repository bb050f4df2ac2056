#!/bin/sh
# Builds a PostgreSQL image from Debian's packages, for machines where Docker
# runs but no registry answers. The entry point is docker-entrypoint.sh beside
# this file, which behaves as the official image's does for testcontainers.
#
#   build.sh SUITE [TAG]      bookworm is PostgreSQL 15, trixie 17, sid 18
#   PGLOCK_PG_IMAGE=pgtest-postgres:15 go test ./...
#
# Needs root, Docker and debootstrap; takes one to three minutes. The suite's
# packages come from the mirror that this machine's apt uses.
set -eu
suite=${1:?usage: build.sh SUITE [TAG]}
case $suite in
bookworm) major=15 ;;
trixie) major=17 ;;
sid) major=18 ;;
*) echo "build.sh: no PostgreSQL major is known for suite $suite" >&2; exit 2 ;;
esac
tag=${2:-pgtest-postgres:$major}
here=$(cd "$(dirname "$0")" && pwd)
for program in docker debootstrap; do
	command -v $program >/dev/null || { echo "build.sh: $program is missing (Debian: apt-get install $program)" >&2; exit 1; }
done

root=$(mktemp -d "${TMPDIR:-/var/tmp}/pgtest-image.XXXXXX")
cleanup() {
	# Before the removal, which must not reach into the machine's /proc.
	umount "$root/proc" 2>/dev/null || true
	if mountpoint -q "$root/proc"; then echo "build.sh: $root/proc is still mounted" >&2; else rm -rf --one-file-system "$root"; fi
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

mirror=$(sed -n 's/^URIs: *//p; s/^deb  *\(\[.*\] *\)\{0,1\}\([^ ]*\) .*/\2/p' \
	/etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | head -n 1)
debootstrap --variant=minbase "$suite" "$root" ${mirror:+"$mirror"}

# Packages of newer suites want /proc while they are set up. No daemon may be
# started, and no cluster made: the entry point makes its own.
mkdir -p "$root/proc" "$root/etc/postgresql-common"
mount -t proc proc "$root/proc"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
echo 'create_main_cluster = false' >"$root/etc/postgresql-common/createcluster.conf"
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
cp /etc/apt/apt.conf.d/*proxy* /etc/apt/apt.conf.d/*registry* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
in_root() { DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" "$@"; }
in_root apt-get -qq update
in_root apt-get -qq -y --no-install-recommends install "postgresql-$major"
in_root apt-get clean
rm -rf "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d"

install -m 755 "$here/docker-entrypoint.sh" "$root/usr/local/bin/docker-entrypoint.sh"
install -d -m 755 "$root/docker-entrypoint-initdb.d"
umount "$root/proc"

tar -C "$root" --one-file-system -c . | docker import \
	--change 'ENTRYPOINT ["docker-entrypoint.sh"]' \
	--change 'CMD ["postgres"]' \
	--change 'EXPOSE 5432' \
	--change "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/$major/bin" \
	--change "ENV PG_MAJOR=$major" \
	--change 'ENV PGDATA=/var/lib/postgresql/data' \
	--change 'ENV LANG=C.UTF-8' \
	- "$tag"
echo "built $tag"
