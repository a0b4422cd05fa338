#!/usr/bin/env bash
# run_clang_tidy.sh BUILD_FOLDER: clang-tidy over every source of ours that the folder compiles.
# Rules are in .clang-tidy; the commands may come from gcc, whose warning options clang does not know; any error fails, functions over 70 lines are only listed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1
cd "$root"
python3 - "$build/compile_commands.json" <<'PY' |
import json, sys
for entry in json.load(open(sys.argv[1])):
    if "/generated/" not in entry["file"]:
        print(entry["file"])
PY
  sort -u | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p "$build" \
    --extra-arg=-Wno-unknown-warning-option 2>/dev/null |
  tee "$build/clang-tidy.log" | grep -E 'warning:|error:' || true
if grep -q 'error:' "$build/clang-tidy.log"; then
  cat "$build/clang-tidy.log" >&2
  exit 1
fi
