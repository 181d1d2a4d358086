#!/usr/bin/env bash
# Build the artifact from the files git knows or would know, never from what else lies about in the checkout.
# Usage: build.sh OUTPUT_DIRECTORY      prints the artifact's path
. "$(dirname "$0")/common.sh"
output=${1:?output directory}
tree=$CACHE/build
rm -rf "$tree" "$output"
mkdir -p "$tree" "$output"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  if [ -e "$file" ] && [ ! -L "$file" ]; then printf '%s\0' "$file"; fi
done | tar --null --files-from=- --create --file=- | tar --extract --file=- -C "$tree"
"$VENV/bin/ansible-galaxy" collection build "$tree" --output-path "$output" --force >&2
printf '%s\n' "$output"/*.tar.gz
