#!/usr/bin/env bash
# run.sh where there is no GPU, and its bookkeeping with a pretended one: nothing is built.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# claim, command...
check() {
  local claim=$1
  shift
  if "$@"; then
    echo "ok: $claim"
  else
    echo "FAILED: $claim"
    failures=$((failures + 1))
  fi
}

run() {
  "$here/run.sh" "$@" >"$folder/stdout" 2>"$folder/stderr"
  code=$?
}

prints() { grep -q -- "$1" "$folder/stdout"; }
ended_with() { [ "$code" -eq "$1" ]; }
# python expression over the results as r
holds() {
  python3 -c "import json, sys; r = json.load(open(sys.argv[1])); sys.exit(not ($1))" \
    "$folder/out/results.json"
}

# ---- Refusals -----------------------------------------------------------------------------------

CUDA_VISIBLE_DEVICES='' run "$folder/out"
check "without a visible GPU it says so" prints '^run.sh: no GPU: CUDA_VISIBLE_DEVICES'
check "and ends with 0" ended_with 0
check "and leaves nothing behind" test ! -e "$folder/out"

mkdir "$folder/failing"
printf '#!/bin/sh\nexit 9\n' >"$folder/failing/nvidia-smi"
chmod +x "$folder/failing/nvidia-smi"
PATH=$folder/failing:$PATH run "$folder/out"
check "a driver that does not answer is no GPU" prints '^run.sh: no GPU: nvidia-smi lists none'
check "and is no error" ended_with 0

run
check "without a folder for the results it refuses" ended_with 2
run --no-such-flag "$folder/out"
check "so it does with an unknown flag" ended_with 2
run --only nonsense "$folder/out"
check "and with an unknown phase" ended_with 2
run --skip nonsense "$folder/out"
check "to leave out as well" ended_with 2
run --help
check "--help names the phases" prints 'sanitizers bits ceilings'

# ---- Bookkeeping --------------------------------------------------------------------------------

mkdir "$folder/pretended"
cat >"$folder/pretended/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in
  -L) echo "GPU 0: Pretended" ;;
  *--loop*) exec sleep 100 ;;
  *) echo "a value" ;;
esac
END
cp "$folder/pretended/nvidia-smi" "$folder/pretended/nvcc"
chmod +x "$folder/pretended"/*
export PATH=$folder/pretended:$PATH

run --only probe,tests,torch --build "$folder/build" --bundle "$folder/none" "$folder/out"
check "what was not built is skipped, not failed" ended_with 0
check "every phase has a line" holds \
  '[p["phase"] + " " + p["status"] for p in r["phases"]] ==
   ["probe ok", "tests skipped", "torch skipped"]'
check "a skipped phase says why" holds '"no test was built" in r["phases"][1]["note"]'
check "the machine is described" holds \
  'r["machine"]["gpu.name"] == "a value" and r["machine"]["commit"] and r["machine"]["sources"]'
check "there is a table" grep -q '^| probe | ok |' "$folder/out/results.md"
check "at most eight files" test "$(find "$folder/out" -type f | wc -l)" -le 8

run --skip "build,sanitizers,bits,ceilings,memory,gemm,prefill,decode,copies,served,large,company,\
transformers,torch" --build "$folder/build" --bundle "$folder/none" "$folder/out"
check "phases can be left out" holds '[p["phase"] for p in r["phases"]] == ["probe", "tests"]'
check "targets that nothing was measured for say so" holds \
  'r["targets"] and all(t["status"] == "not measured" for t in r["targets"])'

run --add --only torch --build "$folder/build" --bundle "$folder/none" "$folder/out"
check "a run can add to the one before" holds \
  '[p["phase"] for p in r["phases"]] == ["probe", "tests", "torch"] and r["machine"]["commit"]'
check "and to its logs" grep -q '^tests: skipped' "$folder/out/run.log"

mkdir -p "$folder/build/cmake/tests"
printf '#!/bin/sh\necho "no GPU: of no use"\n' >"$folder/build/cmake/tests/idle_test"
chmod +x "$folder/build/cmake/tests/idle_test"
cat >"$folder/build/cmake/CTestTestfile.cmake" <<END
add_test(idle_test "$folder/build/cmake/tests/idle_test")
set_tests_properties(idle_test PROPERTIES SKIP_REGULAR_EXPRESSION "^no GPU:")
END
run --only tests --build "$folder/build" "$folder/out"
check "a test program that tests nothing is a failure" holds 'r["phases"][0]["status"] == "failed"'
check "and so is the whole" ended_with 1

run --only bits,served --build "$folder/build" --seconds 12 "$folder/out"
check "a phase without time does not begin" holds \
  'all(p["status"] == "no time left" for p in r["phases"])'

printf '{"group": "decode", "case": "a", "us": 2.0, "ok": true}\n{"group": "dec' \
  >"$folder/build/work/figures.jsonl"
printf '{"group": "decode", "case": "a", "peer": "p", "us": 3.0, "ratio": 1.5}\n' \
  >"$folder/build/work/peers.jsonl"
printf '{"ok": true, "step_ms": 20.0, "context": 4200.0, "floor_ms": 10.0, "step_over_floor": 2.0, "batch": 64}' \
  >"$folder/build/work/large.json"
printf '{"ok": false, "note": "the server did not start:\\nno memory"}' \
  >"$folder/build/work/company.json"
python3 "$here/summarize.py" --work "$folder/build/work" --out "$folder/out"
check "a line that was cut off costs no other figure" holds 'len(r["figures"]) == 1'
check "a peer stands beside its figure" grep -q '| a | 2.00 | .* | p 3.0, 1.50 x |' \
  "$folder/out/results.md"

check "a target that was missed is shown" grep -q \
  '| 20.00 ms at a mean context of 4200, floor 10.00 ms: 2.000 | \*\*fail\*\* |' \
  "$folder/out/results.md"
check "one that could not be tried says why" grep -q \
  '| not measured: the server did not start: | not measured |' "$folder/out/results.md"
check "all of what the servers said is there" grep -q '^- step_ms: 20.00' "$folder/out/results.md"

[ "$failures" -eq 0 ]
