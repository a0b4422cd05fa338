#!/usr/bin/env bash
# Builds, checks and measures the GPU backend on a machine with a GPU. README.md explains it.
set -uo pipefail

usage() {
  cat <<'END'
usage: tests/gpu/run.sh [flags] OUT

Builds the kernels here, runs their tests, compute-sanitizer, checks of bits, benchmarks, PyTorch on
the same cases, served models and transformers beside them. Writes OUT/results.json, OUT/results.md
and six logs.
Without a GPU or nvcc it says so and ends with 0.

    --seconds N      of everything together; default 530
    --bundle FILE    of make_bundle.sh: programs for the served test, sources of GoogleTest;
                     default build/gpu_bundle.tar.gz
    --build DIR      kept between runs; default build/gpu
    --only A,B       of the phases: probe build tests sanitizers bits ceilings memory gemm prefill
                     decode copies served large company torch transformers
    --skip A,B       all but these
    --add            to what the last run with this --build left: its figures stay in the results
    --quick          few cases of each benchmark
    --rehearse       everything that can be tried without a GPU: kernels under the emulator, tiny
                     sizes; takes minutes and proves nothing about speed
    --help
END
}

# ---- Phases, in order of value ------------------------------------------------------------------

# Name, seconds that earlier phases leave for it, most seconds it may take.
readonly PHASES="
probe          8  20
build         90 240
tests         45 120
sanitizers    35 120
bits          20  60
ceilings      10  30
memory        15  40
gemm          20  60
prefill       20  60
decode        40 150
copies        12  40
served        40  90
large         55  90
company       25  60
torch         30  90
transformers  55 150
"
readonly SKIPPED=77
readonly SECONDS_FOR_SUMMARY=8

say() { printf '%s\n' "$*"; }

# Ends the phase; the reason goes into the results.
skip() {
  # shellcheck disable=SC2153  # PHASE is one of PHASES, from the environment
  say "skipped: $*" | tee "$QUIRE_WORK/skipped.$PHASE"
  exit $SKIPPED
}

stop_without_gpu() {
  say "run.sh: $*; nothing was built or measured"
  exit 0
}

phase_probe() {
  {
    say "date=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    say "commit=$(commit)"
    say "sources=$(cd "$REPO" && find kernels/cuda tests/gpu -name '*.[ch]*' -type f -print0 |
      LC_ALL=C sort -z | xargs -0 cat | sha256sum | head -c 12)"
    say "cpu=$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//')"
    say "cores=$(nproc)"
    say "kernel=$(uname -r)"
    say "compiler=$(c++ --version | head -1)"
    say "cmake=$(cmake --version | head -1)"
    say "rehearsal=$REHEARSE"
    if [ "$REHEARSE" = no ]; then
      say "nvcc=$(nvcc --version | grep -o 'V[0-9.]*' | tail -1)"
      for field in name driver_version compute_cap memory.total clocks.sm clocks.mem \
        clocks.max.sm clocks.max.mem power.limit temperature.gpu persistence_mode; do
        say "gpu.$field=$(query_gpu "$field")"
      done
    fi
  } | tee "$QUIRE_WORK/probe.txt"
}

commit() {
  local id
  id=$(git -C "$REPO" rev-parse --short=12 HEAD 2>/dev/null) || id=${QUIRE_COMMIT:-unknown}
  if [ -n "$(git -C "$REPO" status --porcelain --untracked-files=no 2>/dev/null)" ]; then
    id="$id with changes"
  fi
  say "$id"
}

query_gpu() { timeout 20 nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader 2>/dev/null; }

phase_build() {
  local flags=(-DCMAKE_BUILD_TYPE=Release)
  if command -v ninja >/dev/null; then
    flags+=(-G Ninja)
  fi
  if [ -d "$BUILD/bundle/googletest" ]; then
    flags+=("-DQUIRE_GTEST_SOURCE=$BUILD/bundle/googletest")
  elif [ -d /usr/src/googletest ]; then
    flags+=(-DQUIRE_GTEST_SOURCE=/usr/src/googletest)
  fi
  if [ "$REHEARSE" = yes ]; then
    flags+=(-DQUIRE_GPU_EMULATED=ON)
  else
    flags+=("-DQUIRE_CUDA_ARCHITECTURES=$(query_gpu compute_cap | tr -d .)"
      "-DQUIRE_CUBLASLT_INCLUDE_HINTS=$(find_in_python include/cublasLt.h)")
  fi
  cmake -S "$HERE" -B "$BUILD/cmake" "${flags[@]}" || return
  # What does not compile must not keep the rest from being built.
  cmake --build "$BUILD/cmake" --parallel "$(nproc)" --target gpu_bench ||
    say "gpu_bench was not built"
  local keep_going=(-k)
  [ ! -f "$BUILD/cmake/build.ninja" ] || keep_going+=(0)
  cmake --build "$BUILD/cmake" --parallel "$(nproc)" -- "${keep_going[@]}"
}

# shellcheck disable=SC2153  # LIMIT is in the environment of every phase
phase_tests() {
  mkdir -p "$QUIRE_WORK/gtest"
  local programs=("$BUILD"/cmake/tests/*_test)
  [ -x "${programs[0]}" ] || skip "no test was built; is there GoogleTest?"
  local filter='*'
  if [ "$REHEARSE" = yes ]; then
    filter='-*HeadDim80*:*HeadDim96*:*HeadDim112*:*HeadDim128*:*HeadDim256*'
  fi
  GTEST_OUTPUT="json:$QUIRE_WORK/gtest/" GTEST_FILTER=$filter GTEST_BRIEF=1 \
    ctest --test-dir "$BUILD/cmake" --parallel 8 --output-on-failure --timeout "$((LIMIT - 5))" ||
    return
  # ctest is content with a program that skips everything.
  local program
  for program in "${programs[@]}"; do
    [ -s "$QUIRE_WORK/gtest/$(basename "$program").json" ] ||
      { say "$program left no result" && return 1; }
  done
}

# One tool on one program.
sanitize() {
  local tool=$1 program=$2 start rc name
  # Large head sizes and the second 16-bit type run the same code: left out, for time. So are arrays
  # of 12 GiB, each byte of which the tools keep a record of.
  local filter='-*HeadDim80*:*HeadDim96*:*HeadDim112*:*HeadDim256*:*F16Cache*:LargePoolTest*'
  name=$(basename "$program")
  start=$(date +%s)
  # timeout puts what it runs where the phase's own timeout does not reach: it must be over before.
  if [ $((PHASE_END - start)) -lt 10 ]; then
    say "==== $tool $name: no time left"
    return
  fi
  timeout --kill-after=2 "$((PHASE_END - start - 5))" \
    compute-sanitizer --tool "$tool" --error-exitcode 86 --print-limit 20 \
    "$program" --gtest_brief=1 --gtest_filter="$filter" \
    >"$QUIRE_WORK/sanitizer.$tool.$name.log" 2>&1
  rc=$?
  printf '{"tool": "%s", "program": "%s", "rc": %d, "seconds": %d}\n' \
    "$tool" "$name" "$rc" "$(($(date +%s) - start))" >>"$QUIRE_WORK/sanitizers.jsonl"
  say "==== $tool $name: exit code $rc"
  tail -n 25 "$QUIRE_WORK/sanitizer.$tool.$name.log"
  return "$rc"
}

phase_sanitizers() {
  [ "$REHEARSE" = no ] || skip "the emulated build has its own: see tests/kernels/cuda"
  command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not installed"
  local programs=("$BUILD"/cmake/tests/*_test)
  [ -x "${programs[0]}" ] || skip "no test was built"
  export -f sanitize say
  PHASE_END=$(($(date +%s) + LIMIT))
  export PHASE_END QUIRE_WORK
  # All kernels in the smallest shapes first.
  local smallest=$BUILD/cmake/tests/races_test
  for tool in memcheck racecheck synccheck initcheck; do
    [ ! -x "$smallest" ] || printf '%s\0%s\0' "$tool" "$smallest"
  done >"$QUIRE_WORK/sanitizer_runs"
  for tool in memcheck racecheck synccheck initcheck; do
    for program in "${programs[@]}"; do
      [ "$program" = "$smallest" ] ||
        printf '%s\0%s\0' "$tool" "$program"
    done
  done >>"$QUIRE_WORK/sanitizer_runs"
  xargs -0 -n 2 -P 8 bash -c 'sanitize "$@"' sanitize <"$QUIRE_WORK/sanitizer_runs"
}

bench() {
  local program=$BUILD/cmake/bin/gpu_bench
  [ -x "$program" ] || skip "gpu_bench was not built"
  local flags=("--only=$1" "--limit-seconds=$((LIMIT - 8))" "--json=$QUIRE_WORK/figures.jsonl")
  [ "$REHEARSE" = no ] || flags+=(--rehearse)
  [ "$QUICK" = no ] || flags+=(--quick)
  # Measured once, by the phase of the ceilings.
  if [ -f "$QUIRE_WORK/ceilings.txt" ] && [ "$1" != ceilings ]; then
    local words=()
    read -ra words <"$QUIRE_WORK/ceilings.txt"
    flags+=("${words[@]}")
  fi
  "$program" "${flags[@]}"
}

phase_bits() { bench bits; }

phase_ceilings() {
  bench ceilings || return
  python3 - "$QUIRE_WORK/figures.jsonl" >"$QUIRE_WORK/ceilings.txt" <<'END'
import json
import sys
names = {"copy on the device, read + written": ("--copy-gb-per-s", "gb_per_s"),
         "bf16 product 8192 x 8192 x 8192": ("--product-tflop-per-s", "tflop_per_s")}
flags = {}
for line in open(sys.argv[1], encoding="utf-8"):
    figure = json.loads(line)
    if figure["case"] in names:
        flag, key = names[figure["case"]]
        flags[flag] = f"{flag}={figure[key]}"
print(" ".join(flags.values()))
END
}

phase_memory() { bench memory,sampling; }
phase_gemm() { bench gemm; }
phase_prefill() { bench prefill; }
phase_decode() { bench decode; }
phase_copies() { bench copies; }

phase_torch() {
  [ -s "$QUIRE_WORK/figures.jsonl" ] || skip "there are no figures to compare with"
  local end=$(($(date +%s) + LIMIT - 12))
  python3 "$HERE/flashinfer_peer.py" --figures "$QUIRE_WORK/figures.jsonl" \
    --json "$QUIRE_WORK/peers.jsonl" --limit-seconds "$((LIMIT / 2))"
  python3 "$HERE/torch_peer.py" --figures "$QUIRE_WORK/figures.jsonl" \
    --json "$QUIRE_WORK/peers.jsonl" --limit-seconds "$((end - $(date +%s)))"
}

# The rest drives the servers: script, flags on a device, flags of a rehearsal. The results go to
# $QUIRE_WORK/NAME.json.
with_servers() {
  local name=$1 script=$2 bin=$BUILD/bundle/bin lib=$BUILD/bundle/lib
  shift 2
  if [ ! -x "$bin/quire" ]; then
    bin=$REPO/build/cpu-release/bin
    lib=$bin
  fi
  [ -x "$bin/quire" ] || skip "no bundle of make_bundle.sh and no build/cpu-release"
  python3 "$HERE/$script" --bin "$bin" \
    --lib "$lib${QUIRE_CUBLASLT_FOLDER:+:$QUIRE_CUBLASLT_FOLDER}" \
    --library-path "$BUILD/cmake/bin" --limit-seconds "$((LIMIT - 5))" \
    --json "$QUIRE_WORK/$name.json" "$@"
}

phase_served() {
  local flags=(--device cuda)
  [ "$QUICK" = no ] || flags+=(--prompts 3 --bench-prompts 32)
  [ "$REHEARSE" = no ] || flags=(--device emu --prompts 2 --tokens 8 --bench-prompts 2)
  with_servers served served_test.py --model "$REPO/deploy/model" "${flags[@]}"
}

phase_large() {
  local flags=(--device cuda)
  [ "$QUICK" = no ] || flags+=(--context 1024 --tokens 64)
  [ "$REHEARSE" = no ] ||
    flags=(--device emu --device-flags "--kv-cache-memory-bytes 64MiB" --shape tiny --batch 4
      --context 20 --tokens 100)
  # The speed of a copy, where it was measured.
  local copy
  if copy=$(grep -o -- '--copy-gb-per-s=[0-9.e+]*' "$QUIRE_WORK/ceilings.txt" 2>/dev/null); then
    flags+=("$copy")
  fi
  with_servers large large_model_bench.py "${flags[@]}"
}

phase_company() {
  local flags=(--device cuda)
  [ "$QUICK" = no ] || flags+=(--requests 1000)
  [ "$REHEARSE" = no ] ||
    flags=(--device emu --device-flags "--kv-cache-memory-bytes 64MiB" --requests 24 --prompts 6
      --longest-prompt 40 --concurrency 4 --step-tokens 32)
  with_servers company company_test.py --model "$REPO/deploy/model" "${flags[@]}"
}

phase_transformers() {
  local flags=(--device cuda)
  [ "$QUICK" = no ] || flags+=(--requests 64)
  [ "$REHEARSE" = no ] ||
    flags=(--device emu --device-flags "--kv-cache-memory-bytes 64MiB" --shape tiny --requests 6
      --context 20 --tokens 16)
  with_servers transformers transformers_peer.py "${flags[@]}"
}

# ---- Running them -------------------------------------------------------------------------------

# Which log of OUT a phase writes to.
log_of() {
  case $1 in
    build) say build.log ;;
    tests) say tests.log ;;
    sanitizers) say sanitizers.log ;;
    served | large | company | transformers) say served.log ;;
    probe) say run.log ;;
    *) say bench.log ;;
  esac
}

seconds_left() { say $((DEADLINE - $(date +%s) - SECONDS_FOR_SUMMARY)); }

record() {
  printf '{"phase": "%s", "status": "%s", "exit_code": %d, "seconds": %d}\n' "$@" \
    >>"$QUIRE_WORK/phases.jsonl"
  say "$1: $2 ($4 s)" | tee -a "$OUT/run.log"
}

# name, most seconds.
run_phase() {
  local name=$1 limit=$2 start rc status=failed
  if [ "$limit" -lt 10 ]; then
    record "$name" "no time left" 0 0
    return
  fi
  start=$(date +%s)
  # A process of its own, so that timeout can end it with everything it started.
  PHASE=$name LIMIT=$limit timeout --kill-after=5 "$limit" bash "$HERE/run.sh" --phase "$name" \
    >>"$OUT/$(log_of "$name")" 2>&1
  rc=$?
  case $rc in
    0) status=ok ;;
    "$SKIPPED") status=skipped ;;
    124 | 137) status="out of time" ;;
  esac
  record "$name" "$status" "$rc" "$(($(date +%s) - start))"
}

is_wanted() {
  [[ ",$SKIP," != *",$1,"* ]] && { [ -z "$ONLY" ] || [[ ",$ONLY," == *",$1,"* ]]; }
}

run_phases() {
  local name share cap names=() shares=() caps=() later=0 limit left i
  while read -r name share cap; do
    if [ -n "$name" ] && is_wanted "$name"; then
      # Emulated, and compiled by few cores, everything takes longer.
      [ "$REHEARSE" = no ] || cap=$((4 * cap))
      names+=("$name") shares+=("$share") caps+=("$cap")
      later=$((later + share))
    fi
  done <<<"$PHASES"
  for i in "${!names[@]}"; do
    later=$((later - shares[i]))
    left=$(seconds_left)
    # Time that was not used goes to those that come first; each leaves the later ones their share,
    # as long as there is enough for a share of its own.
    limit=$((left - later))
    [ "$limit" -ge "${shares[i]}" ] || limit=$((left < shares[i] ? left : shares[i]))
    [ "$limit" -le "${caps[i]}" ] || limit=${caps[i]}
    run_phase "${names[i]}" "$limit"
  done
}

# Clocks and heat while everything runs, every 5 seconds.
start_clock_log() {
  CLOCK_LOG_PID=
  if [ "$REHEARSE" = no ]; then
    nvidia-smi --id=0 --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw \
      --format=csv,noheader,nounits --loop=5 >"$QUIRE_WORK/clocks.csv" 2>/dev/null &
    CLOCK_LOG_PID=$!
  fi
}

stop_clock_log() {
  if [ -n "$CLOCK_LOG_PID" ]; then
    kill "$CLOCK_LOG_PID" 2>/dev/null
    wait "$CLOCK_LOG_PID" 2>/dev/null
    CLOCK_LOG_PID=
  fi
}

# The folder that holds this file of CUDA, where CUDA's libraries are installed as Python packages.
find_in_python() {
  python3 - "$1" 2>/dev/null <<'END'
import pathlib
import sys
import nvidia
for folder in nvidia.__path__:
    for path in sorted(pathlib.Path(folder).glob("*/" + sys.argv[1])):
        print(path.parent)
        raise SystemExit
END
}

# Where libcublasLt is when the loader does not know it; else nothing.
find_cublaslt() {
  ldconfig -p 2>/dev/null | grep -q libcublasLt.so ||
    ls /usr/local/cuda/lib64/libcublasLt.so.* >/dev/null 2>&1 ||
    find_in_python 'lib/libcublasLt.so.*'
}

require_gpu() {
  export PATH=$PATH:/usr/local/cuda/bin
  case ${CUDA_VISIBLE_DEVICES-0} in
    '' | -1) stop_without_gpu "no GPU: CUDA_VISIBLE_DEVICES hides them all" ;;
  esac
  command -v nvidia-smi >/dev/null || stop_without_gpu "no GPU: there is no nvidia-smi"
  timeout 30 nvidia-smi -L 2>/dev/null | grep -q '^GPU 0' ||
    stop_without_gpu "no GPU: nvidia-smi lists none"
  command -v nvcc >/dev/null || stop_without_gpu "no nvcc, here or in /usr/local/cuda/bin"
  for tool in cmake python3; do
    command -v "$tool" >/dev/null || stop_without_gpu "no $tool"
  done
}

parse() {
  OUT='' ONLY='' SKIP='' ADD=no QUICK=no REHEARSE=no TOTAL_SECONDS=530
  BUILD=$REPO/build/gpu BUNDLE=$REPO/build/gpu_bundle.tar.gz
  while [ $# -gt 0 ]; do
    case $1 in
      --help) usage && exit 0 ;;
      --add) ADD=yes ;;
      --quick) QUICK=yes ;;
      --rehearse) REHEARSE=yes ;;
      --seconds | --bundle | --build | --only | --skip)
        [ $# -ge 2 ] || { usage >&2 && exit 2; }
        case $1 in
          --seconds) TOTAL_SECONDS=$2 ;;
          --bundle) BUNDLE=$2 ;;
          --build) BUILD=$2 ;;
          --only) ONLY=$2 ;;
          --skip) SKIP=$2 ;;
        esac
        shift
        ;;
      -*) usage >&2 && exit 2 ;;
      *) OUT=$1 ;;
    esac
    shift
  done
  [ -n "$OUT" ] || { usage >&2 && exit 2; }
  local name
  for name in ${ONLY//,/ } ${SKIP//,/ }; do
    grep -q "^$name " <<<"$PHASES" || { say "run.sh: no phase $name" >&2 && exit 2; }
  done
  [[ $TOTAL_SECONDS =~ ^[0-9]+$ ]] || { usage >&2 && exit 2; }
}

main() {
  parse "$@"
  [ "$REHEARSE" = yes ] || require_gpu
  mkdir -p "$OUT" "$BUILD"
  OUT=$(cd "$OUT" && pwd)
  BUILD=$(cd "$BUILD" && pwd)
  DEADLINE=$(($(date +%s) + TOTAL_SECONDS))
  QUIRE_WORK=$BUILD/work
  rm -rf "$BUILD/bundle"
  if [ "$ADD" = no ]; then
    rm -rf "$QUIRE_WORK"
    rm -f "$OUT"/{run,build,tests,sanitizers,bench,served}.log
  fi
  mkdir -p "$QUIRE_WORK" "$BUILD/bundle"
  rm -f "$OUT"/results.{json,md}
  if [ -f "$BUNDLE" ]; then
    tar -xzf "$BUNDLE" -C "$BUILD/bundle" || say "run.sh: cannot unpack $BUNDLE"
  fi
  QUIRE_CUBLASLT_FOLDER=$(find_cublaslt)
  if [ -n "$QUIRE_CUBLASLT_FOLDER" ]; then
    export LD_LIBRARY_PATH=$QUIRE_CUBLASLT_FOLDER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  export OUT BUILD QUICK REHEARSE QUIRE_WORK QUIRE_CUBLASLT_FOLDER QUIRE_REQUIRE_GPU=1
  trap stop_clock_log EXIT
  start_clock_log
  run_phases
  stop_clock_log
  python3 "$HERE/summarize.py" --work "$QUIRE_WORK" --out "$OUT" && cat "$OUT/results.md"
  # Logs come back from such machines with a limit on their size.
  for log in "$OUT"/*.log; do
    if [ "$(stat -c %s "$log")" -gt 4000000 ]; then
      tail -c 4000000 "$log" >"$log.end" && mv "$log.end" "$log"
    fi
  done
  ! grep -q '"failed"\|"out of time"' "$QUIRE_WORK/phases.jsonl"
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
if [ "${1-}" = --phase ]; then
  "phase_$2"
else
  main "$@"
fi
