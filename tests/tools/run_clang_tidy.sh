#!/usr/bin/env bash
# run_clang_tidy.sh BUILD_FOLDER [--tests]: clang-tidy over the sources of the programs, and with
# --tests over the tests as well (which takes three times as long). Rules are in .clang-tidy; any
# error fails, functions over 70 lines are only listed. The commands may come from gcc, whose
# warning options clang does not know.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1
cd "$root"
python3 - "$build/compile_commands.json" "${2:-}" <<'PY' |
import json, sys
for entry in json.load(open(sys.argv[1])):
    is_test = "/tests/" in entry["file"]
    if "/generated/" not in entry["file"] and (not is_test or sys.argv[2] == "--tests"):
        print(entry["file"])
PY
  sort -u | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p "$build" \
    --extra-arg=-Wno-unknown-warning-option 2>/dev/null |
  tee "$build/clang-tidy.log" | grep -E 'warning:|error:' || true
if grep -q 'error:' "$build/clang-tidy.log"; then
  cat "$build/clang-tidy.log" >&2
  exit 1
fi
