#!/bin/bash
# Every check of the sources, all of them even if one fails.
set -uo pipefail
cd "$(dirname "$0")/../.."

failed=0
for name in layers layout pitfalls public_headers format; do
  python3 "tools/check/$name.py" || failed=1
done
exit $failed
