#!/bin/sh
# version.sh VERSION: writes a new version wherever the project says its own. CHANGELOG.md gets its section by hand.
set -eu
cd "$(dirname "$0")/.."
new=$1
old=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | sed 's/\./\\./g')
sed -i -E "s/^(version = \"|version: )$old/\1$new/; s/\b(atta|atta-bench)(==|:)$old\b/\1\2$new/g" \
  pyproject.toml bench/pyproject.toml CITATION.cff deploy/Dockerfile deploy/kubernetes/*.yaml
sed -i "s/^date-released: .*/date-released: \"$(date +%F)\"/" CITATION.cff
