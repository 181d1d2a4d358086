#!/usr/bin/env bash
# Have a headless Chromium for the tests of the report, without installing anything: the packages are unpacked under .cache, which
# `make clean` removes. Does nothing where there is one already (installed, or named in IRONSERVE_CHROMIUM).
# Debian and Ubuntu only; elsewhere install Chromium, or name one.
. "$(dirname "$0")/common.sh"

place=$CACHE/chromium
program=$place/root/usr/lib/chromium/chromium-headless-shell
if [ -n "${IRONSERVE_CHROMIUM:-}" ] || [ -x "$program" ]; then exit 0; fi
for name in chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
command -v apt-get >/dev/null || die "there is no Chromium for the tests of the report: install one, or name it in IRONSERVE_CHROMIUM"

exec 9>"$CACHE/chromium.lock"
flock 9
if [ -x "$program" ]; then exit 0; fi
wanted=(chromium-headless-shell fonts-dejavu-core fonts-wqy-microhei)
say "fetching a headless Chromium into .cache (once, some 100 MB; nothing is installed)"
apt-cache show chromium-headless-shell >/dev/null 2>&1 || as_root apt-get update -qq \
  || die "apt does not know chromium-headless-shell and its lists cannot be refreshed (see above)"
# Those of its libraries that this machine lacks.
mapfile -t packages < <(apt-get install -s --no-install-recommends "${wanted[@]}" 2>/dev/null | awk '/^Inst/ {print $2}')
# What is installed already needs no copy, but the browser itself is looked for in the tree.
[ "${#packages[@]}" -gt 0 ] || packages=(chromium-headless-shell)
rm -rf "$place"
mkdir -p "$place/debs" "$place/partial"
(cd "$place/debs" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}") \
  || die "the packages of Chromium could not be fetched (see above): a package mirror must be reachable, or name a Chromium in IRONSERVE_CHROMIUM"
for file in "$place"/debs/*.deb; do dpkg -x "$file" "$place/partial"; done
rm -rf "$place/debs"
mv "$place/partial" "$place/root"
[ -x "$program" ] || die "the packages of Chromium were unpacked, but $program is not there"
