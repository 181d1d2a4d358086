#!/usr/bin/env bash
# Documentation of modules and roles: markup, cross references, and that it renders.
. "$(dirname "$0")/common.sh"
artifact=$(tests/gate/build.sh "$CACHE/artifact")
tree=$CACHE/docs/ansible_collections/ironserve/llm
rm -rf "$CACHE/docs"
mkdir -p "$tree"
tar --extract --gzip --file "$artifact" -C "$tree"
export PATH=$VENV/bin:$PATH ANSIBLE_COLLECTIONS_PATH=$CACHE/docs
exec antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs self --skip-rstcheck "$tree"
