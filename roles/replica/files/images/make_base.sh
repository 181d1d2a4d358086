#!/bin/sh
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Make the tar of a small base system: make_base.sh TAR SUITE MIRROR KEYRING PACKAGES USER UID
# The tar appears under its name only when it is whole.
set -eu
tar=$1 suite=$2 mirror=$3 keyring=$4 packages=$5 user=$6 uid=$7
# An earlier run that was killed may have left its tree; the run lock keeps others out.
rm -rf "$tar".tree.* "$tar.part"
tree=$(mktemp -d "$tar.tree.XXXXXX")
trap 'rm -rf "$tree" "$tar.part"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# An https mirror behind a private authority is trusted through the host's own bundle; wget reads only its own setting.
bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
if [ -r "$bundle" ]; then
    printf 'ca_certificate = %s\n' "$bundle" >"$tree.wgetrc"
    trap 'rm -rf "$tree" "$tree.wgetrc" "$tar.part"' EXIT
    export WGETRC="$tree.wgetrc"
fi

debootstrap --variant=minbase ${keyring:+--keyring="$keyring"} --include="$packages" "$suite" "$tree" "$mirror" >"$tar.log" 2>&1 || {
    status=$?
    echo "debootstrap of $suite failed ($status); the end of $tar.log:" >&2
    tail -n 5 "$tar.log" >&2
    exit 1
}
printf '%s:x:%s:%s:inference engine:/tmp:/usr/sbin/nologin\n' "$user" "$uid" "$uid" >>"$tree/etc/passwd"
printf '%s:x:%s:\n' "$user" "$uid" >>"$tree/etc/group"

# A container installs nothing: caches, documents, translations and the host's own sources are dead weight. Copyrights stay.
rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/var/log/* "$tree"/usr/share/man/* "$tree"/usr/share/info/* \
    "$tree"/usr/share/locale/* "$tree"/usr/share/i18n/* "$tree"/etc/apt/sources.list "$tree"/etc/apt/sources.list.d/* "$tree"/var/cache/debconf/*-old
find "$tree/usr/share/doc" -type f ! -name copyright -delete
find "$tree/usr/share/doc" -type d -empty -delete
find "$tree/usr" -type d -name __pycache__ -prune -exec rm -rf {} +
rm -f "$tree/etc/hostname" "$tree/etc/resolv.conf"

# Device nodes come from the container engine.
tar --numeric-owner --one-file-system --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -C "$tree" -cf "$tar.part" .
mv "$tar.part" "$tar"
rm -f "$tar.log"
