#!/usr/bin/env bash
# run.sh where there is no GPU, and its bookkeeping with a pretended GPU and pretended programs:
# nothing is built.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
# shellcheck source=tests/gpu/source_hash.sh
. "$here/source_hash.sh"

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
  "$here/run.sh" --build "$folder/build" --bundle "$folder/bundle.tar.gz" "$@" \
    >"$folder/stdout" 2>"$folder/stderr"
  code=$?
}

prints() { grep -q -- "$1" "$folder/stdout"; }
ended_with() { [ "$code" -eq "$1" ]; }
# python expression over the results as r
holds() {
  python3 -c "import json, sys; r = json.load(open(sys.argv[1])); sys.exit(not ($1))" \
    "$folder/out/results.json"
}
# Makes a program of the standard input.
program() {
  mkdir -p "$(dirname "$1")"
  cat >"$1"
  chmod +x "$1"
}

# ---- Refusals -----------------------------------------------------------------------------------

CUDA_VISIBLE_DEVICES='' run "$folder/out"
check "without a visible GPU it says so" prints '^run.sh: no GPU: CUDA_VISIBLE_DEVICES'
check "and ends with 0" ended_with 0
check "and leaves nothing behind" test ! -e "$folder/out"

program "$folder/failing/nvidia-smi" <<<'#!/bin/sh
exit 9'
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
run --only 'prob.' "$folder/out"
check "a phase is named exactly" ended_with 2
run --seconds 0 "$folder/out"
check "no time at all is refused" ended_with 2
run --call 4 "$folder/out"
check "and with a call that is none of the three" ended_with 2
run --help
check "--help names the phases" prints 'ceilings loads bits decode prefill'

# The shares of a call's phases, of its default of 250 seconds; 10 are for the summary and the start.
fits() {
  local only
  only=$(sed -n "s/^readonly $1=//p" "$here/run.sh" | tr , ' ')
  awk -v only=" $only " '/^readonly PHASES=/ { on = 1; next } /^"/ { on = 0 }
    on && index(only, " " $1 " ") { sum += $2 } END { exit !(sum > 0 && sum <= 240) }' "$here/run.sh"
}
first() {
  awk -v rest=" $(sed -n 's/^readonly \(SECOND\|THIRD\)_CALL=//p' "$here/run.sh" | tr ',\n' '  ') " \
    '/^readonly PHASES=/ { on = 1; next } /^"/ { on = 0 }
    on && !index(rest, " " $1 " ") { sum += $2 } END { exit !(sum > 0 && sum <= 240) }' "$here/run.sh"
}
check "the phases of the first call fit" first
check "and of the second" fits SECOND_CALL
check "and of the third" fits THIRD_CALL

# ---- Pretended ----------------------------------------------------------------------------------

program "$folder/pretended/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in
  *--loop*) exec sleep 100 ;;
  *--query-gpu=compute_cap*) echo 9.0 ;;
  *--query-gpu=*) echo "a GPU, 580.1, 9.0" ;;
esac
END
program "$folder/pretended/nvcc" <<<'#!/bin/sh
echo V13.0.1'
program "$folder/pretended/ldconfig" <<<'#!/bin/sh
echo "libcublasLt.so.12 (libc6,x86-64) => /usr/lib/libcublasLt.so.12"'
program "$folder/pretended/compute-sanitizer" <<'END'
#!/bin/sh
case "$*" in
  *memcheck*races_test*) exit 0 ;;
  *racecheck*races_test*) exit 86 ;;
  *synccheck*races_test*) exit 124 ;;
  *initcheck*races_test*) echo "Error: Device not supported."; exit 1 ;;
  *) exit 3 ;;
esac
END
program "$folder/pretended/ncu" <<'END'
#!/bin/sh
echo '"ID","Kernel Name","gpu__time_duration.sum"'
echo '"","","us"'
echo '"0","DecodeLines(LineParams)","34.5"'
END
export PATH=$folder/pretended:$PATH

# Pretended programs that print the figures asked for, and more lines than a log may hold.
program "$folder/bundle/device/bin/gpu_bench" <<'END'
#!/bin/bash
for argument; do
  case $argument in
    --profile) exit "$(cat "$(dirname "$0")/libquire_peers.so")" ;;
    --peers=*) echo '{"group": "decode", "case": "with peers", "us": 1.0, "ok": true}' >>"$json" ;;
    --device) echo "device: pretended, sm_90" ;;
    --json=*)
      json=${argument#*=}
      echo '{"group": "ceilings", "case": "copy on the device, read + written", "us": 1.0,' \
        '"gb_per_s": 4000.0, "ok": true}' >>"$json"
      seq 300000
      ;;
  esac
done
END
program "$folder/bundle/device/tests/races_test" <<'END'
#!/bin/sh
echo '{"tests": 1, "failures": 0, "testsuites": []}' >"${GTEST_OUTPUT#json:}/races_test.json"
END
touch "$folder/bundle/device/bin/quire_cuda.so"

# Facts to replace, as in architectures=80.
bundle() {
  cat >"$folder/bundle/BUILT" <<END
commit=0123456789ab
server_sources=$(source_hash "$here/../.." servers)
device_sources=$(source_hash "$here/../.." device)
emulated=no
architectures=90
needs_glibc=2.34
END
  local fact
  for fact; do
    sed -i "s/^${fact%%=*}=.*/$fact/" "$folder/bundle/BUILT"
  done
  tar -czf "$folder/bundle.tar.gz" -C "$folder/bundle" .
}

# ---- Carried programs ---------------------------------------------------------------------------

bundle
GIT_DIR=$folder/none run --only probe,build "$folder/out"
check "the carried programs are used" holds \
  'r["phases"][1]["note"] == "carried, built from commit 0123456789ab"'
check "a tree without history is of the commit of the bundle" holds \
  'r["machine"]["commit"] == "0123456789ab"'
check "the machine is described" holds \
  'r["machine"]["gpu.name"] == "a GPU" and r["machine"]["gpu.compute_cap"] == "9.0" and
   r["machine"]["sources"]'
check "another version of cuBLASLt is not ours" holds \
  '"loader" not in r["machine"]["cublaslt"]'
sed -i 's/12/13/g' "$folder/pretended/ldconfig"
run --only probe "$folder/out"
check "but the one that cublaslt.cc opens is" holds 'r["machine"]["cublaslt"] == "known to the loader"'

PATH=$folder/failing:$PATH run --only probe "$folder/out"
check "without nvidia-smi a carried program finds the GPU" ended_with 0
check "and it is measured" holds 'r["phases"][0]["status"] == "ok"'

refused() {
  check "$1" holds "'$2' in r['machine']['programs']"
  check "and is told" prints "^run.sh: compiling here: .*$2"
}
bundle device_sources=0
run --only probe "$folder/out"
refused "a bundle of other sources is not used" "the bundle is stale: built from sources 0"
bundle architectures=80
run --only probe "$folder/out"
refused "nor is one for another GPU" "for compute capability 80, this is 90"
bundle emulated=yes
run --only probe "$folder/out"
refused "nor one for the emulator" "emulated=yes"
bundle
run --compile --only probe "$folder/out"
refused "nor any when that is asked for" "--compile was given"
mv "$folder/bundle/device/bin/gpu_bench" "$folder/gpu_bench"
program "$folder/bundle/device/bin/gpu_bench" <<<'#!/bin/sh
echo "GLIBC_2.99 not found"
exit 1'
bundle
run --only probe "$folder/out"
refused "nor one whose programs do not start" "need glibc 2.34, do not start: GLIBC_2.99 not found"
mv "$folder/gpu_bench" "$folder/bundle/device/bin/gpu_bench"

# ---- Two calls ----------------------------------------------------------------------------------

bundle
run --call 1 "$folder/out"
check "the first call leaves the large models out" holds \
  '[p["phase"] for p in r["phases"]] == ["probe", "build", "tests", "ceilings", "loads", "bits",
   "decode", "prefill", "gemm", "peers", "ncu"]'
check "tests need no CMake" holds 'r["tests"] == [{"program": "races_test", "tests": 1, "failures": 0,
  "failed": []}]'
check "there is a table" grep -q '^| probe | ok |' "$folder/out/results.md"
check "profiles are counters of kernels" holds \
  '[(p["case"], p["kernel"], p["counters"]) for p in r["profiles"]][0] ==
   ("28/4 heads of 128, block 16, 8 x 8192", "DecodeLines", {"time": "34.5 us"})'
check "of five launches" holds 'len(r["profiles"]) == 5'
rm -f "$folder"/out/*
run --call 2 "$folder/out"
check "the second call adds to it" holds \
  '[p["phase"] for p in r["phases"]][-8:] == ["ncu", "windows", "copies", "memory", "large", "company",
   "served", "sanitizers"] and len(r["figures"]) == 9 and r["machine"]["commit"]'
check "a skipped phase says why" holds \
  '"no bundle" in [p["note"] for p in r["phases"] if p["phase"] == "served"][0]'
check "a tool that does not know the device has found nothing, and a time-out neither" holds \
  '[t["measured"] for t in r["targets"] if "sanitizer" in t["target"]] ==
   ["1 of 2 runs found something: racecheck races_test; not finished: synccheck races_test"]'
check "a finding fails the phase" holds \
  '[p["status"] for p in r["phases"] if p["phase"] == "sanitizers"] == ["failed"]'
check "and the whole" ended_with 1
mkdir "$folder/late"
QUIRE_WORK=$folder/late PROGRAMS=$folder/bundle/device REHEARSE=no PHASE=sanitizers LIMIT=5 \
  "$here/run.sh" --phase sanitizers >"$folder/stdout"
check "what there was no time for has not finished" test \
  "$(grep -c '"rc": 124' "$folder/late/sanitizers.jsonl")" -eq 4
run --call 3 "$folder/out"
check "the third adds to both" holds '[p["phase"] for p in r["phases"]][-2:] == ["sanitizers", "transformers"]'
run --call 1 "$folder/out"
run --call 2 "$folder/out"
run --call 3 "$folder/out"
check "all leave at most eight files" test "$(find "$folder/out" | tail -n +2 | wc -l)" -le 8
check "none of them too large" test -z "$(find "$folder/out" -size +8M)"

rm -rf "$folder/build" "$folder/out"
run --call 2 "$folder/out"
check "on another machine it says that the first is missing" prints '^run.sh: nothing of a first call'
check "and measures what it needs" holds \
  '[p["phase"] for p in r["phases"]] == ["probe", "ceilings", "windows", "copies", "memory", "large",
   "company", "served", "sanitizers"] and
   r["phases"][0]["note"].startswith("nothing of a first call")'
sed -i 's/^sources=.*/sources=0/' "$folder/build/work/probe.txt"
run --call 2 "$folder/out"
check "nor does it add to a first call of other sources" holds \
  '[p["phase"] for p in r["phases"]] == ["probe", "ceilings", "windows", "copies", "memory", "large",
   "company", "served", "sanitizers"] and
   r["phases"][0]["note"].startswith("the first call had other sources") and
   r["machine"]["sources"] != "0"'

# ---- Bookkeeping --------------------------------------------------------------------------------

run --skip "build,sanitizers,bits,ceilings,loads,memory,gemm,prefill,decode,windows,copies,served,large,\
company,transformers,peers,ncu" "$folder/out"
check "phases can be left out" holds '[p["phase"] for p in r["phases"]] == ["probe", "tests"]'
check "targets that nothing was measured for say so" holds \
  'all(t["status"] == "not measured" for t in r["targets"] if "tests" not in t["target"])'

run --add --only peers "$folder/out"
check "a run can add to the one before" holds \
  '[p["phase"] for p in r["phases"]] == ["probe", "tests", "peers"] and r["machine"]["commit"]'
check "and to its logs" grep -q '^tests: ok' "$folder/out/run.log"

program "$folder/bundle/device/tests/idle_test" <<<'#!/bin/sh
echo "no GPU: of no use"'
bundle
run --only tests "$folder/out"
check "a test program that tests nothing is a failure" holds 'r["phases"][0]["status"] == "failed"'
check "and so is the whole" ended_with 1
check "and it is among the tests" holds \
  'r["tests"][0] == {"program": "idle_test", "note": "left no result"}'

program "$folder/pretended/ncu" <<<'#!/bin/sh
echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"'
run --only ncu "$folder/out"
check "counters that are not permitted are told" holds '"ERR_NVGPUCTRPERM" in r["phases"][0]["note"]'
check "and are no failure" ended_with 0

echo 0 >"$folder/bundle/device/bin/libquire_peers.so"
bundle
run --only bits,decode "$folder/out"
check "kernels of other projects are measured where attention is" holds \
  '[f["case"] for f in r["figures"]].count("with peers") == 1'
echo 1 >"$folder/bundle/device/bin/libquire_peers.so"
bundle
run --only decode,prefill "$folder/out"
check "without them if they do not run" holds 'len(r["figures"]) == 2 and
  "with peers" not in [f["case"] for f in r["figures"]] and "do not run" in r["phases"][0]["note"]'
check "which is no failure" ended_with 0
rm "$folder/bundle/device/bin/libquire_peers.so"

run --only bits,served --seconds 12 "$folder/out"
check "a phase without time does not begin" holds \
  'all(p["status"] == "no time left" for p in r["phases"])'
check "which is no success" ended_with 1
run --call 1 --only large "$folder/out"
check "nor is a call that leaves no phase" ended_with 2
check "and it says so" grep -q 'of the phases none is left' "$folder/stderr"
flock "$folder/build/lock" sleep 20 &
sleep 0.2
run --only bits "$folder/out"
check "two runs do not share a build folder" ended_with 1
kill %% && wait

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
  '| not measured: the server did not start: no memory | not measured |' "$folder/out/results.md"
check "all of what the servers said is there" grep -q '^- step_ms: 20.00' "$folder/out/results.md"

# ---- What make_bundle.sh carries ----------------------------------------------------------------

needs() { "$here/make_bundle.sh" --check "$folder/needs" >"$folder/stdout"; }
compile() { "${CXX:-c++}" -x c++ - -x none -o "$folder/needs/$1" "${@:2}" <<<'int main() {}'; }
mkdir -p "$folder/needs"/{bin,lib,device/bin}
check "a folder without programs is no bundle" eval '! needs 2>/dev/null'
"${CXX:-c++}" -x c++ - -shared -fPIC -Wl,-soname,libown.so -o "$folder/needs/lib/libown.so" \
  <<<'int own() { return 1; }'
compile device/bin/a
compile bin/b -Wl,--no-as-needed "$folder/needs/lib/libown.so"
check "a program may need the run-time libraries, a server what is carried" needs
compile bin/e -Wl,--no-as-needed -l:libresolv.so.2
check "and what comes with the C library" needs
compile device/bin/c -Wl,--no-as-needed "$folder/needs/lib/libown.so"
check "a program for a device may not" eval '! needs && prints "c needs libown.so, which is not"'
rm "$folder/needs/device/bin/c"
compile bin/d -Wl,-rpath,/usr/local/cuda/lib64
check "no program may look into a toolkit" eval '! needs && prints "d looks for libraries in /usr"'

[ "$failures" -eq 0 ]
