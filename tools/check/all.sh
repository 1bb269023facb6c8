#!/bin/bash
# Runs every check of the sources, even if one of them fails.
set -uo pipefail
cd "$(dirname "$0")/../.."

failed=0
for name in layers layout pitfalls public_headers format pages; do
  python3 "tools/check/$name.py" || failed=1
done
exit $failed
