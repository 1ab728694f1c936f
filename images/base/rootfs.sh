#!/usr/bin/env bash
# Writes a Debian 12 root file system with Python 3.11 as a tar file: what images/base/Dockerfile adds.
#
# For machines without a registry to pull python:3.11-slim-bookworm from. Needs root and debootstrap.
#   rootfs.sh OUT.tar
#   DEBIAN_MIRROR=...   default: http://deb.debian.org/debian
set -euo pipefail
out=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

work=$(mktemp -d "$(dirname "$out")/rootfs.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root

packages=$(grep -v '^#' "$here/packages.txt" | paste -sd, -)
if ! debootstrap --variant=minbase --include="$packages" bookworm "$root" "$mirror" > "$work/debootstrap.log" 2>&1; then
    tail -n 20 "$work/debootstrap.log" "$root/debootstrap/debootstrap.log" >&2 || true
    printf 'rootfs.sh: debootstrap of bookworm from %s failed (above).\n' "$mirror" >&2
    exit 1
fi

# Not the mirror of this machine: whoever builds on top reaches Debian's own.
printf 'deb http://deb.debian.org/debian %s main\n' bookworm bookworm-updates > "$root/etc/apt/sources.list"
printf 'deb http://deb.debian.org/debian-security bookworm-security main\n' >> "$root/etc/apt/sources.list"

# Packages installed later leave these out, too.
cat > "$root/etc/dpkg/dpkg.cfg.d/no-documentation" <<'EOF'
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
EOF
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -depth \( -type d -empty -o -xtype l \) -delete
rm -rf "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* "$root"/usr/share/lintian
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/debconf/*-old "$root"/var/log/*
# Debian leaves them behind: the machine's name and resolver are not the image's.
rm -f "$root/etc/hostname" "$root/etc/resolv.conf" "$root/var/cache/ldconfig/aux-cache"

tar --numeric-owner --xattrs --sort=name -C "$root" -cf "$out.part" .
mv "$out.part" "$out"
