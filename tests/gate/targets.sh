#!/usr/bin/env bash
# Compile what is sent to managed hosts, and import its pure part, on every Python >= 3.7 of this machine.
# An absent version is no failure, but the last line says which ones answered.
. "$(dirname "$0")/common.sh"

tried=()
status=0
while read -r version home; do
  case $version in 2.*|3.[0-6]) continue ;; esac
  tried+=("$version")
  "$home/python$version" -I -B - "$ROOT" <<'PY' || { status=1; say "managed hosts' Python: $version FAILED"; }
import glob, importlib, os, sys
root, failures = sys.argv[1], 0
for path in sorted(glob.glob(root + "/plugins/modules/*.py") + glob.glob(root + "/plugins/module_utils/*.py") + glob.glob(root + "/roles/*/files/**/*.py", recursive=True)):
    try:
        with open(path, "rb") as source:
            compile(source.read(), path, "exec", dont_inherit=True)
    except SyntaxError as exc:
        failures += 1
        print("%s:%s: %s" % (path, exc.lineno, exc.msg))
sys.path.insert(0, root + "/collections")
for path in sorted(glob.glob(root + "/plugins/module_utils/_*.py")):
    name = os.path.basename(path)[:-3]
    if name == "__init__":
        continue
    try:
        importlib.import_module("ansible_collections.ironserve.llm.plugins.module_utils." + name)
    except ImportError as exc:
        # The two doors may need a library that this bare interpreter lacks; nothing else may be missing.
        if getattr(exc, "name", None) not in ("requests", "docker"):
            failures += 1
            print("%s: %s" % (path, exc))
    except Exception as exc:
        failures += 1
        print("%s: %s: %s" % (path, type(exc).__name__, exc))
sys.exit(failures > 0)
PY
done < <(python_homes)
say "managed hosts' Python tried: ${tried[*]:-none}"
exit "$status"
