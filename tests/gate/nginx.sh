#!/usr/bin/env bash
# Have an nginx with JavaScript for the tests of the gateway, without installing anything: the packages are unpacked under .cache, which
# `make clean` removes. Prints what to put into the environment; nothing where there is one already (installed, or named in IRONSERVE_NGINX).
# Debian and Ubuntu only; elsewhere install nginx and its njs module, or name an nginx.
. "$(dirname "$0")/common.sh"

place=$CACHE/nginx
program=$place/root/usr/sbin/nginx
module=usr/lib/nginx/modules/ngx_http_js_module.so
if [ -n "${IRONSERVE_NGINX:-}" ]; then exit 0; fi
if [ -x /usr/sbin/nginx ] && [ -e "/$module" ]; then exit 0; fi
exec 9>"$CACHE/nginx.lock"
flock 9
if [ ! -x "$program" ] || [ ! -e "$place/root/$module" ]; then
  command -v apt-get >/dev/null || die "there is no nginx with JavaScript for the tests of the gateway: install one, or name it in IRONSERVE_NGINX"
  say "fetching nginx into .cache (once, some 2 MB; nothing is installed)"
  apt-cache show libnginx-mod-http-js >/dev/null 2>&1 || as_root apt-get update -qq \
    || die "apt does not know libnginx-mod-http-js and its lists cannot be refreshed (see above)"
  # Those of its libraries that this machine lacks, and nginx even where it is installed without the module.
  mapfile -t packages < <({ apt-get install -s --no-install-recommends libnginx-mod-http-js 2>/dev/null | awk '/^Inst/ {print $2}'; echo nginx; } | sort -u)
  rm -rf "$place"
  mkdir -p "$place/debs" "$place/partial"
  (cd "$place/debs" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}") \
    || die "the packages of nginx could not be fetched (see above): a package mirror must be reachable, or name an nginx in IRONSERVE_NGINX"
  for file in "$place"/debs/*.deb; do dpkg -x "$file" "$place/partial"; done
  rm -rf "$place/debs"
  mv "$place/partial" "$place/root"
  [ -x "$program" ] && [ -e "$place/root/$module" ] || die "the packages of nginx were unpacked, but $program or its module is not there"
fi
echo "IRONSERVE_NGINX=$program"
for libraries in "$place"/root/usr/lib/*-linux-gnu*; do
  [ ! -d "$libraries" ] || echo "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
