#!/usr/bin/env bash
# Checks and measures the GPU backend on a machine with a GPU. README.md explains it.
set -uo pipefail
START=$(date +%s)

usage() {
  cat <<'END'
usage: tests/gpu/run.sh [flags] OUT

Runs the kernels' tests, checks of bits, benchmarks, other projects' kernels on the same cases, ncu,
served models, transformers beside them, and compute-sanitizer. The programs are those of make_bundle.sh; where they
do not run they are compiled here. Writes OUT/results.json, OUT/results.md and six logs. Without a
GPU it says so and ends with 0.

    --call 1 | 2 | 3 of three: the second has served models and sanitizers, the third transformers;
                     each adds to what the ones before left
    --seconds N      of everything together; default 250, without --call 500, in a rehearsal 1800
    --bundle FILE    default build/gpu_bundle.tar.gz
    --build DIR      kept between runs; default build/gpu
    --compile        leave the carried programs for a device alone and compile them here
    --only A,B       of the phases: probe build tests ceilings loads bits decode prefill gemm peers ncu
                     windows copies memory large company served sanitizers transformers
    --skip A,B       all but these
    --add            to what the last run with this --build left: its figures stay in the results
    --quick          few cases of each benchmark
    --rehearse       without a GPU: programs of make_bundle.sh --emulated, tiny sizes; alone it makes
                     all calls. Takes minutes and proves nothing about speed. Other defaults:
                     build/gpu_bundle.emulated.tar.gz, build/gpu_rehearsal
    --help
END
}

# ---- Phases, in order of value ------------------------------------------------------------------

# Name, seconds that earlier phases leave for it, most seconds it may take. Ncu, sanitizers and
# transformers take all the time that is left, so each comes last in its call.
readonly PHASES="
probe         10  20
build          2 240
tests         25  60
ceilings       8  30
loads         12  30
bits          15  40
decode        45  90
prefill       25  50
gemm          12  40
peers         35  60
ncu           40  90
windows       15  40
copies        10  40
memory        10  40
large         45  90
company       35  70
served        40  90
sanitizers    50 150
transformers 110 220
"
readonly SECOND_CALL=windows,copies,memory,large,company,served,sanitizers
readonly THIRD_CALL=transformers
readonly SKIPPED=77
readonly SECONDS_FOR_SUMMARY=8
# The version that kernels/cuda/cublaslt.cc opens when it was compiled with CUDA 13.
readonly CUBLASLT=libcublasLt.so.13
readonly NCCL=libnccl.so.2

say() { printf '%s\n' "$*"; }

# Prints a note, which goes into the results beside the phase.
note() {
  # shellcheck disable=SC2153  # PHASE is one of PHASES, from the environment
  say "$*" | tee "$QUIRE_WORK/note.$PHASE"
}

# Ends the phase; the reason goes into the results.
skip() {
  note "skipped: $*"
  exit $SKIPPED
}

stop_without_gpu() {
  say "run.sh: $*; nothing was built or measured"
  exit 0
}

phase_probe() {
  [ -z "$QUIRE_PROBE_NOTE" ] || note "$QUIRE_PROBE_NOTE"
  {
    say "date=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    say "commit=$(commit)"
    say "sources=$(source_hash "$REPO" device)"
    say "programs=$(origin_of_programs)"
    [ ! -e "$PEERS" ] || say "peers=$(built peers)"
    say "cpu=$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//')"
    say "cores=$(nproc)"
    say "memory=$(grep MemTotal /proc/meminfo | grep -o '[0-9]* kB')"
    say "kernel=$(uname -r)"
    say "glibc=$(ldd --version 2>/dev/null | head -1 | grep -o '[0-9.]*$')"
    say "python=$(python3 --version)"
    say "rehearsal=$REHEARSE"
    if [ "$REHEARSE" = no ]; then
      say "nvcc=$(nvcc --version 2>/dev/null | grep -o 'V[0-9.]*' | tail -1)"
      say "cublaslt=$QUIRE_CUBLASLT"
      say "nccl=$QUIRE_NCCL"
      probe_gpu
    fi
  } | tee "$QUIRE_WORK/probe.txt"
}

# One query asks for all values, since a query may take a second if nothing else keeps the driver loaded.
probe_gpu() {
  local i names values
  names=name,driver_version,compute_cap,memory.total,clocks.sm,clocks.mem,clocks.max.sm
  names+=,clocks.max.mem,power.limit,temperature.gpu,persistence_mode
  IFS=, read -ra values <<<"$(query_gpu "$names")"
  IFS=, read -ra names <<<"$names"
  for i in "${!values[@]}"; do
    say "gpu.${names[i]}=${values[i]# }"
  done
}

query_gpu() { timeout 20 nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader 2>/dev/null; }

# A copy of the tree may be without its history.
commit() {
  local id
  if ! id=$(git -C "$REPO" rev-parse --short=12 HEAD 2>/dev/null); then
    id=${QUIRE_COMMIT:-$(built commit)}
    say "${id:-unknown}"
    return
  fi
  if [ -n "$(git -C "$REPO" status --porcelain --untracked-files=no 2>/dev/null)" ]; then
    id="$id with changes"
  fi
  say "$id"
}

origin_of_programs() {
  if [ -n "$QUIRE_WHY_COMPILED" ]; then
    say "compiled here: $QUIRE_WHY_COMPILED"
  else
    say "carried, built from commit $(built commit)"
  fi
}

phase_build() {
  note "$(origin_of_programs)"
  [ -n "$QUIRE_WHY_COMPILED" ] || return 0
  local flags=(-DCMAKE_BUILD_TYPE=Release) library=quire_cuda
  if [ ! -f "$BUILD/cmake/CMakeCache.txt" ] && command -v ninja >/dev/null; then
    flags+=(-G Ninja)
  fi
  if [ -d "$BUILD/bundle/googletest" ]; then
    flags+=("-DQUIRE_GTEST_SOURCE=$BUILD/bundle/googletest")
  elif [ -d /usr/src/googletest ]; then
    flags+=(-DQUIRE_GTEST_SOURCE=/usr/src/googletest)
  fi
  if [ "$REHEARSE" = yes ]; then
    library=quire_emu
    flags+=(-DQUIRE_GPU_EMULATED=ON)
  else
    flags+=("-DQUIRE_CUDA_ARCHITECTURES=$GPU_CAPABILITY"
      "-DQUIRE_CUBLASLT_INCLUDE_HINTS=$(find_in_python include/cublasLt.h)"
      "-DQUIRE_NCCL_INCLUDE_HINTS=$(find_in_python include/nccl.h)")
  fi
  cmake -S "$HERE" -B "$BUILD/cmake" "${flags[@]}" || return
  # A target that does not compile must not keep the others from being built.
  local target keep_going=(-k)
  for target in "$library" gpu_bench; do
    cmake --build "$BUILD/cmake" --parallel "$(nproc)" --target "$target" ||
      say "$target was not built"
  done
  [ ! -f "$BUILD/cmake/build.ninja" ] || keep_going+=(0)
  cmake --build "$BUILD/cmake" --parallel "$(nproc)" -- "${keep_going[@]}"
}

# One program. timeout puts what it runs where the phase's own timeout does not reach: it must be
# over before.
run_test() {
  local name log result seconds rc
  name=$(basename "$1")
  log=$QUIRE_WORK/test.$name.log
  result=$QUIRE_WORK/gtest/$name.json
  seconds=$((PHASE_END - $(date +%s) - 5))
  GTEST_OUTPUT="json:$QUIRE_WORK/gtest/" GTEST_BRIEF=1 \
    timeout --kill-after=2 "$((seconds > 1 ? seconds : 1))" "$1" >"$log" 2>&1
  rc=$?
  # No result: the program ended early or skipped everything. The empty file keeps it among the results.
  if [ ! -s "$result" ]; then
    rc="$rc, no result"
    : >"$result"
  fi
  say "$name: exit code $rc"
  [ "$rc" = 0 ] || { tail -n 60 "$log" && return 1; }
}

# shellcheck disable=SC2153  # LIMIT is in the environment of every phase
phase_tests() {
  local programs=("$PROGRAMS"/tests/*_test) program failed=0
  [ -x "${programs[0]}" ] || skip "no test was built; is there GoogleTest?"
  rm -rf "$QUIRE_WORK/gtest"
  mkdir -p "$QUIRE_WORK/gtest"
  if [ "$REHEARSE" = yes ]; then
    export GTEST_FILTER='-*HeadDim80*:*HeadDim96*:*HeadDim112*:*HeadDim128*:*HeadDim256*'
  fi
  PHASE_END=$(($(date +%s) + LIMIT))
  export PHASE_END QUIRE_WORK
  export -f run_test say
  cd "$REPO" || return
  # This test runs first, since a wrong product of one tile explains many later failures.
  local first=$PROGRAMS/tests/wgmma_product_test
  [ ! -x "$first" ] || run_test "$first" || failed=1
  for program in "${programs[@]}"; do
    [ "$program" = "$first" ] || printf '%s\0' "$program"
  done | xargs -0 -n 1 -P 8 bash -c 'run_test "$@"' run_test || failed=1
  return "$failed"
}

# Runs one tool on one program.
sanitize() {
  local tool=$1 program=$2 start rc name log refused=false
  # One head size is enough, since all run the same code, and so is one 16-bit type. Arrays of
  # 12 GiB are left out, since the tools keep a record of each byte. NCCL is left out, and so are calls
  # that are to fail, which memcheck reports.
  local filter='-*HeadDim80*:*HeadDim96*:*HeadDim112*:*HeadDim128*:*HeadDim256*:*F16Cache*'
  filter+=':LargePoolTest*:DeviceGroupTest*:*TooLargeAreRefused'
  name=$(basename "$program")
  log=$QUIRE_WORK/sanitizer.$tool.$name.log
  start=$(date +%s)
  if [ $((PHASE_END - start)) -lt 10 ]; then
    rc=$TIMED_OUT
    say "no time left" >"$log"
  else
    timeout --kill-after=2 "$((PHASE_END - start - 5))" \
      compute-sanitizer --tool "$tool" --error-exitcode "$FOUND" --print-limit 20 \
      "$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1
    rc=$?
  fi
  ! grep -qi 'device not supported' "$log" || refused=true
  printf '{"tool": "%s", "program": "%s", "rc": %d, "refused": %s, "seconds": %d}\n' \
    "$tool" "$name" "$rc" "$refused" "$(($(date +%s) - start))" >>"$QUIRE_WORK/sanitizers.jsonl"
  say "==== $tool $name: exit code $rc"
  tail -n 25 "$log"
  # Else the tool found something, or a test failed under it. 137: timeout's second attempt.
  [ "$refused" = true ] || [[ $rc =~ ^(0|$TIMED_OUT|137)$ ]]
}

phase_sanitizers() {
  [ "$REHEARSE" = no ] || skip "the emulated build has its own: see tests/kernels/cuda"
  command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not installed"
  local programs=("$PROGRAMS"/tests/*_test)
  [ -x "${programs[0]}" ] || skip "no test was built"
  rm -f "$QUIRE_WORK/sanitizers.jsonl"
  PHASE_END=$(($(date +%s) + LIMIT))
  export PHASE_END QUIRE_WORK FOUND=86 TIMED_OUT=124
  export -f sanitize say
  cd "$REPO" || return
  # The test with all kernels in the smallest shapes runs first. Of the others those with kernels that
  # no device had run on 2026-11-26; the results of that day have the rest.
  local name tool
  for name in races_test decode_lines_test paged_prefill_test early_kernels_test prepare_attention_test \
    windows_test; do
    for tool in memcheck racecheck synccheck initcheck; do
      [ ! -x "$PROGRAMS/tests/$name" ] || printf '%s\0%s\0' "$tool" "$PROGRAMS/tests/$name"
    done
  done >"$QUIRE_WORK/sanitizer_runs"
  xargs -0 -n 2 -P 8 bash -c 'sanitize "$@"' sanitize <"$QUIRE_WORK/sanitizer_runs"
}

# Whether other projects' kernels run at all. A fault of theirs would end a benchmark of ours, so they
# are tried in a process of their own, once.
peers_run() {
  [ -e "$PEERS" ] || return
  if [ ! -e "$QUIRE_WORK/peers" ]; then
    local flags=(--profile --quick --only=decode,prefill "--peers=$PEERS")
    [ "$REHEARSE" = no ] || flags+=(--rehearse)
    if timeout 30 "$PROGRAMS/bin/gpu_bench" "${flags[@]}" >"$QUIRE_WORK/peers.log" 2>&1; then
      say yes >"$QUIRE_WORK/peers"
    else
      say no >"$QUIRE_WORK/peers"
      tail -n 5 "$QUIRE_WORK/peers.log"
      note "the kernels of other projects do not run, and are left out"
    fi
  fi
  grep -q yes "$QUIRE_WORK/peers"
}

bench() {
  local program=$PROGRAMS/bin/gpu_bench
  [ -x "$program" ] || skip "gpu_bench was not built"
  local flags=("--only=$1" "--limit-seconds=$((LIMIT - 8))" "--json=$QUIRE_WORK/figures.jsonl")
  [[ $1 != decode && $1 != prefill ]] || ! peers_run || flags+=("--peers=$PEERS")
  [ "$REHEARSE" = no ] || flags+=(--rehearse)
  [ "$QUICK" = no ] || flags+=(--quick)
  # Ceilings are measured once, by their own phase.
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

phase_loads() { bench loads; }
phase_memory() { bench memory,sampling; }
phase_gemm() { bench gemm; }
phase_prefill() { bench prefill; }
phase_decode() { bench decode; }
phase_copies() { bench copies; }
phase_windows() { bench windows; }

# FlashInfer is not here: the phases decode and prefill measure it in turn with our kernels.
phase_peers() {
  [ -s "$QUIRE_WORK/figures.jsonl" ] || skip "there are no figures to compare with"
  python3 "$HERE/torch_peer.py" --figures "$QUIRE_WORK/figures.jsonl" \
    --json "$QUIRE_WORK/peers.jsonl" --limit-seconds "$((LIMIT - 12))"
}

# Group and case of gpu_bench, both kernels of each in one launch.
readonly PROFILED="
decode|28/4 heads of 128, block 16, 8 x 8192
decode|32/8 heads of 128, block 16, 128 x 8192
prefill|32/8 heads of 128, block 16, 1 x 8192 after 0
prefill|32/8 heads of 128, block 16, 16 x 512 after 0
gemm|out, 64 rows, fastest
"

# Clocks stay as they are: a profile explains times of the same clocks.
phase_ncu() {
  [ "$REHEARSE" = no ] || skip "the emulator has no counters"
  command -v ncu >/dev/null || skip "ncu is not installed"
  local end=$(($(date +%s) + LIMIT - 5)) group name log left
  log=$QUIRE_WORK/ncu.csv
  while IFS='|' read -r group name; do
    left=$((end - $(date +%s)))
    if [ -z "$group" ] || [ "$left" -lt 10 ]; then
      [ -z "$group" ] || say "no time left for $group, $name"
      continue
    fi
    timeout --kill-after=2 "$left" ncu --csv --page raw --profile-from-start off \
      --clock-control none --section SpeedOfLight --section Occupancy --section LaunchStats \
      --section SchedulerStats --section WarpStateStats --section MemoryWorkloadAnalysis \
      "$PROGRAMS/bin/gpu_bench" --profile "--only=$group" "--case=$name" >"$log" 2>&1
    if grep -q ERR_NVGPUCTRPERM "$log"; then
      skip "the driver does not permit counters to this user (ERR_NVGPUCTRPERM)"
    fi
    tail -n 20 "$log"
    python3 "$HERE/read_ncu.py" --group "$group" --case "$name" --json "$QUIRE_WORK/profiles.jsonl" \
      "$log" || say "no profile of $group, $name"
  done <<<"$PROFILED"
  [ -s "$QUIRE_WORK/profiles.jsonl" ]
}

# Runs a script that drives servers. Arguments: name, memory of the KV cache, script, its flags. The
# results go to $QUIRE_WORK/NAME.json. No request here is preempted, so the servers have no swap space.
# Its memory is pinned, which would only make each server start later.
with_servers() {
  local name=$1 cache=$2 script=$3 device=cuda
  shift 3
  [ -n "$SERVERS" ] || skip "$QUIRE_WHY_NO_SERVERS"
  if [ "$REHEARSE" = yes ]; then
    device=emu cache=64MiB
  fi
  [ -e "$PROGRAMS/bin/quire_$device.so" ] || skip "the library of kernels was not built"
  python3 "$HERE/$script" --bin "$SERVERS/bin" \
    --lib "$SERVERS/lib${QUIRE_CUBLASLT_FOLDER:+:$QUIRE_CUBLASLT_FOLDER}" \
    --library-path "$PROGRAMS/bin" --limit-seconds "$((LIMIT - 5))" --device "$device" \
    --device-flags "--kv-cache-memory-bytes $cache --swap-space 0" \
    --json "$QUIRE_WORK/$name.json" "$@"
}

phase_served() {
  local flags=()
  [ "$QUICK" = no ] || flags=(--prompts 3 --bench-prompts 32)
  [ "$REHEARSE" = no ] || flags=(--prompts 2 --tokens 8 --bench-prompts 2)
  with_servers served 2GiB served_test.py --model "$REPO/deploy/model" "${flags[@]}"
}

# 64 sequences of 4368 tokens of 128 KiB each.
phase_large() {
  local flags=()
  [ "$QUICK" = no ] || flags=(--context 1024 --tokens 64)
  [ "$REHEARSE" = no ] || flags=(--shape tiny --batch 4 --context 20 --tokens 100)
  # The speed of a copy, where it was measured.
  local copy
  if copy=$(grep -o -- '--copy-gb-per-s=[0-9.e+]*' "$QUIRE_WORK/ceilings.txt" 2>/dev/null); then
    flags+=("$copy")
  fi
  with_servers large 36GiB large_model_bench.py "${flags[@]}"
}

phase_company() {
  local flags=()
  [ "$QUICK" = no ] || flags=(--requests 1000)
  [ "$REHEARSE" = no ] ||
    flags=(--requests 24 --prompts 6 --longest-prompt 40 --concurrency 4 --step-tokens 32)
  with_servers company 2GiB company_test.py --model "$REPO/deploy/model" "${flags[@]}"
}

# 256 sequences of 640 tokens of 32 KiB each.
phase_transformers() {
  local flags=()
  [ "$QUICK" = no ] || flags=(--requests 64)
  [ "$REHEARSE" = no ] || flags=(--shape tiny --requests 6 --context 20 --tokens 16)
  with_servers transformers 6GiB transformers_peer.py "${flags[@]}"
}

# ---- Running them -------------------------------------------------------------------------------

# Prints the name of the log in OUT that a phase writes to.
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

# Runs a phase. Arguments: name, most seconds.
run_phase() {
  local name=$1 limit=$2 start rc status=failed
  if [ "$limit" -lt 10 ]; then
    record "$name" "no time left" 0 0
    return
  fi
  start=$(date +%s)
  rm -f "$QUIRE_WORK/note.$name"
  # A process of its own, so that timeout can end it with everything it started.
  PHASE=$name LIMIT=$limit timeout --kill-after=5 "$limit" bash "$HERE/run.sh" --phase "$name" \
    >>"$OUT/$(log_of "$name")" 2>&1 9>&-
  rc=$?
  case $rc in
    0) status=ok ;;
    "$SKIPPED") status=skipped ;;
    124 | 137) status="out of time" ;;
  esac
  record "$name" "$status" "$rc" "$(($(date +%s) - start))"
  summarize  # a run that is cut off keeps what it has
}

summarize() { python3 "$HERE/summarize.py" --work "$QUIRE_WORK" --out "$OUT"; }

is_wanted() {
  [[ ",$SKIP," != *",$1,"* ]] && { [ -z "$ONLY" ] || [[ ",$ONLY," == *",$1,"* ]]; }
}

wanted_phases() {
  local name
  while read -r name _; do
    [ -z "$name" ] || ! is_wanted "$name" || say "$name"
  done <<<"$PHASES"
}

run_phases() {
  local name share cap names=() shares=() caps=() later=0 limit left i
  while read -r name share cap; do
    if [ -n "$name" ] && is_wanted "$name"; then
      # A rehearsal takes longer, since kernels are emulated and few cores compile.
      [ "$REHEARSE" = no ] || cap=$((8 * cap))
      names+=("$name") shares+=("$share") caps+=("$cap")
      later=$((later + share))
    fi
  done <<<"$PHASES"
  for i in "${!names[@]}"; do
    later=$((later - shares[i]))
    left=$(seconds_left)
    # A phase may take the time that is left without the shares of later phases, and at least its own
    # share.
    limit=$((left - later))
    [ "$limit" -ge "${shares[i]}" ] || limit=$((left < shares[i] ? left : shares[i]))
    [ "$limit" -le "${caps[i]}" ] || limit=${caps[i]}
    run_phase "${names[i]}" "$limit"
  done
}

# Logs clocks, temperature and power every 5 seconds while the phases run.
start_clock_log() {
  CLOCK_LOG_PID=
  if [ "$REHEARSE" = no ]; then
    nvidia-smi --id=0 --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw \
      --format=csv,noheader,nounits --loop=5 >>"$QUIRE_WORK/clocks.csv" 2>/dev/null 9>&- &
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

# ---- The machine --------------------------------------------------------------------------------

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

# Sets QUIRE_CUBLASLT to where the library is, in words. Sets QUIRE_CUBLASLT_FOLDER to its folder if
# neither the loader nor cublaslt.cc looks there. PyTorch has its own libraries, so no other folder may
# come before them.
find_cublaslt() {
  local folder
  QUIRE_CUBLASLT="not found: no matrix products" QUIRE_CUBLASLT_FOLDER=''
  if ldconfig -p 2>/dev/null | grep -qF "$CUBLASLT"; then
    QUIRE_CUBLASLT="known to the loader"
    return
  fi
  if [ -e "/usr/local/cuda/lib64/$CUBLASLT" ]; then  # where cublaslt.cc looks
    QUIRE_CUBLASLT=/usr/local/cuda/lib64
    return
  fi
  for folder in "$(find_in_python "lib/$CUBLASLT")" /usr/local/cuda/lib \
    /usr/local/cuda/targets/x86_64-linux/lib; do
    if [ -e "$folder/$CUBLASLT" ]; then
      QUIRE_CUBLASLT=$folder QUIRE_CUBLASLT_FOLDER=$folder
      return
    fi
  done
}

# Sets QUIRE_NCCL to where NCCL is, in words. Adds its folder, which holds nothing else, to the path of
# libraries.
find_nccl() {
  local folder
  QUIRE_NCCL="not found: ranks add up through main memory"
  if ldconfig -p 2>/dev/null | grep -qF "$NCCL"; then
    QUIRE_NCCL="known to the loader"
  elif [ -e "/usr/local/cuda/lib64/$NCCL" ]; then  # where nccl.cc looks
    QUIRE_NCCL=/usr/local/cuda/lib64
  elif folder=$(find_in_python "lib/$NCCL") && [ -n "$folder" ]; then
    QUIRE_NCCL=$folder
    add_library_folder "$folder"
  fi
}

add_library_folder() { export LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; }

# Sets variables that a bare environment may lack, and finds the libraries of driver, cuBLASLt and NCCL.
complete_environment() {
  local folder
  export PATH=${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin:/usr/local/cuda/bin
  PATH=$PATH:/usr/local/cuda/compute-sanitizer:/usr/local/nvidia/bin
  for folder in /opt/nvidia/nsight-compute/* /usr/local/cuda/nsight-compute*; do
    [ ! -x "$folder/ncu" ] || PATH=$PATH:$folder
  done
  export HOME=${HOME:-$BUILD}
  for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
    if [ -e "$folder/libcuda.so.1" ] && ! ldconfig -p 2>/dev/null | grep -qF libcuda.so.1; then
      add_library_folder "$folder"
    fi
  done
  find_cublaslt
  find_nccl
  [ -z "$QUIRE_CUBLASLT_FOLDER" ] || add_library_folder "$QUIRE_CUBLASLT_FOLDER"
}

# Ends the script if there is no GPU. Sets GPU_CAPABILITY, such as 90.
require_gpu() {
  local said
  GPU_CAPABILITY=$(query_gpu compute_cap | grep -m1 -o '^[0-9]*\.[0-9]*$' | tr -d .)
  if [ -z "$GPU_CAPABILITY" ]; then
    # The driver may be there without its tools.
    said=$(timeout 60 "$BUILD/bundle/device/bin/gpu_bench" --device 2>&1)
    GPU_CAPABILITY=$(grep -o 'sm_[0-9]*' <<<"$said" | tr -dc 0-9)
  fi
  [ -n "$GPU_CAPABILITY" ] || stop_without_gpu "no GPU: nvidia-smi lists none"
}

# ---- Carried programs ---------------------------------------------------------------------------

unpack_bundle() {
  rm -rf "$BUILD/bundle"
  mkdir -p "$BUILD/bundle"
  if [ -f "$BUNDLE" ]; then
    tar -xzf "$BUNDLE" -C "$BUILD/bundle" || say "run.sh: cannot unpack $BUNDLE"
  fi
}

# Prints a fact that make_bundle.sh wrote into BUILT.
built() { sed -n "s/^$1=//p" "$BUILD/bundle/BUILT" 2>/dev/null; }

# Prints why the carried programs for a device cannot be used, or an empty text.
why_compile() {
  local folder=$BUILD/bundle/device said sources
  sources=$(source_hash "$REPO" device)
  if [ "$COMPILE" = yes ]; then
    say "--compile was given"
  elif [ ! -f "$BUILD/bundle/BUILT" ]; then
    say "there is no bundle of make_bundle.sh at $BUNDLE"
  elif [ ! -x "$folder/bin/gpu_bench" ]; then
    say "the bundle has no programs for a device"
  elif [ "$(built device_sources)" != "$sources" ]; then
    say "the bundle is stale: built from sources $(built device_sources), these are $sources"
  elif [ "$(built emulated)" != "$REHEARSE" ]; then
    say "the bundle is of programs with emulated=$(built emulated)"
  elif [ "$REHEARSE" = no ] && [[ " $(built architectures) " != *" $GPU_CAPABILITY "* ]]; then
    say "the bundle is for compute capability $(built architectures), this is $GPU_CAPABILITY"
  elif ! said=$("$folder/bin/gpu_bench" --help 2>&1); then
    say "the carried programs, which need glibc $(built needs_glibc), do not start: $said"
  fi
}

# Prints why the carried servers cannot be used, or an empty text. Servers are never built here.
why_no_servers() {
  local folder=$BUILD/bundle said sources
  sources=$(source_hash "$REPO" servers)
  if [ ! -x "$folder/bin/quire" ]; then
    say "there are no servers: no bundle of make_bundle.sh at $BUNDLE"
  elif [ "$(built server_sources)" != "$sources" ]; then
    say "the servers are stale: built from sources $(built server_sources), these are $sources"
  elif ! said=$(LD_LIBRARY_PATH=$folder/lib "$folder/bin/quire" --help 2>&1); then
    say "the servers, which need glibc $(built needs_glibc), do not start: $said"
  fi
}

choose_programs() {
  local tool
  PROGRAMS=$BUILD/bundle/device SERVERS=$BUILD/bundle
  QUIRE_WHY_COMPILED=$(why_compile)
  QUIRE_WHY_NO_SERVERS=$(why_no_servers)
  if [ -n "$QUIRE_WHY_COMPILED" ]; then
    PROGRAMS=$BUILD/cmake
    say "run.sh: compiling here: $QUIRE_WHY_COMPILED"
    for tool in cmake c++ nvcc; do
      if ! command -v "$tool" >/dev/null && [ "$tool $REHEARSE" != "nvcc yes" ]; then
        say "run.sh: there is no $tool to compile with" >&2
        exit 1
      fi
    done
  fi
  if [ -n "$QUIRE_WHY_NO_SERVERS" ]; then
    SERVERS=''
    say "run.sh: $QUIRE_WHY_NO_SERVERS"
  fi
  PEERS=$BUILD/bundle/device/bin/libquire_peers.so
  export PEERS PROGRAMS SERVERS QUIRE_WHY_COMPILED QUIRE_WHY_NO_SERVERS
}

# ---- The command --------------------------------------------------------------------------------

parse() {
  OUT='' ONLY='' SKIP='' CALL='' ADD=no QUICK=no REHEARSE=no COMPILE=no
  BUILD='' BUNDLE='' TOTAL_SECONDS=''
  while [ $# -gt 0 ]; do
    case $1 in
      --help) usage && exit 0 ;;
      --add) ADD=yes ;;
      --quick) QUICK=yes ;;
      --compile) COMPILE=yes ;;
      --rehearse) REHEARSE=yes ;;
      --call | --seconds | --bundle | --build | --only | --skip)
        [ $# -ge 2 ] || { usage >&2 && exit 2; }
        case $1 in
          --call) CALL=$2 ;;
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
  local name suffix='' folder=gpu seconds=250
  [ -n "$CALL" ] || seconds=500
  for name in ${ONLY//,/ } ${SKIP//,/ }; do
    awk -v name="$name" '$1 == name { found = 1 } END { exit !found }' <<<"$PHASES" || { say "run.sh: no phase $name" >&2 && exit 2; }
  done
  if [ "$REHEARSE" = yes ]; then
    suffix=.emulated folder=gpu_rehearsal seconds=1800
  fi
  BUILD=${BUILD:-$REPO/build/$folder}
  BUNDLE=${BUNDLE:-$REPO/build/gpu_bundle$suffix.tar.gz}
  TOTAL_SECONDS=${TOTAL_SECONDS:-$seconds}
  [[ $TOTAL_SECONDS =~ ^[1-9][0-9]*$ ]] || { usage >&2 && exit 2; }
  case $CALL in
    '') ;;
    1) SKIP=$SKIP,$SECOND_CALL,$THIRD_CALL ;;
    2) ADD=yes ONLY=${ONLY:-$SECOND_CALL} ;;
    3) ADD=yes ONLY=${ONLY:-$THIRD_CALL} ;;
    *) usage >&2 && exit 2 ;;
  esac
}

# A later call uses the results of the first. Without them it runs the phases probe and ceilings
# itself. It also builds if programs must be compiled.
complete_later_call() {
  local sources
  sources=$(sed -n 's/^sources=//p' "$QUIRE_WORK/probe.txt" 2>/dev/null)
  if [ -z "$sources" ]; then
    QUIRE_PROBE_NOTE="nothing of a first call is here: its figures are not in these results"
  elif [ "$sources" != "$(source_hash "$REPO" device)" ]; then
    QUIRE_PROBE_NOTE="the first call had other sources: its figures are not in these results"
    ADD=no
  fi
  if [ -n "$QUIRE_PROBE_NOTE" ]; then
    say "run.sh: $QUIRE_PROBE_NOTE"
    ONLY=probe,ceilings,$ONLY
  fi
  [ -z "$QUIRE_WHY_COMPILED" ] || ONLY=build,$ONLY
}

main() {
  parse "$@"
  if [ "$REHEARSE$CALL$ONLY$SKIP$ADD" = yesno ]; then
    local failed=0
    bash "$HERE/run.sh" --call 1 "$@" || failed=1
    bash "$HERE/run.sh" --call 2 "$@" || failed=1
    bash "$HERE/run.sh" --call 3 "$@" || failed=1
    exit "$failed"
  fi
  if [ "$REHEARSE" = no ] && [[ ${CUDA_VISIBLE_DEVICES-0} =~ ^(-1)?$ ]]; then
    stop_without_gpu "no GPU: CUDA_VISIBLE_DEVICES hides them all"
  fi
  mkdir -p "$BUILD" || exit
  BUILD=$(cd "$BUILD" && pwd)
  # Phases run without this descriptor, so that a left-over server does not keep the lock.
  exec 9>"$BUILD/lock"
  flock --nonblock 9 || { say "run.sh: another run uses $BUILD" >&2 && exit 1; }
  QUIRE_WORK=$BUILD/work QUIRE_PROBE_NOTE=''
  complete_environment
  unpack_bundle
  [ "$REHEARSE" = yes ] || require_gpu
  command -v python3 >/dev/null || { say "run.sh: there is no python3" >&2 && exit 1; }
  choose_programs
  [[ $CALL != [23] ]] || complete_later_call
  [ -n "$(wanted_phases)" ] || { say "run.sh: of the phases none is left to run" >&2 && exit 2; }
  mkdir -p "$OUT" || exit
  OUT=$(cd "$OUT" && pwd)
  DEADLINE=$((START + TOTAL_SECONDS))
  if [ "$ADD" = no ]; then
    rm -rf "$QUIRE_WORK"
    rm -f "$OUT"/{run,build,tests,sanitizers,bench,served}.log
  fi
  mkdir -p "$QUIRE_WORK"
  rm -f "$OUT"/results.{json,md}
  export OUT BUILD QUICK REHEARSE GPU_CAPABILITY QUIRE_REQUIRE_GPU=1
  export QUIRE_WORK QUIRE_PROBE_NOTE QUIRE_CUBLASLT QUIRE_CUBLASLT_FOLDER QUIRE_NCCL
  trap stop_clock_log EXIT
  start_clock_log
  run_phases
  stop_clock_log
  summarize && sed '/^## Tests/,$d' "$OUT/results.md"
  # Such machines limit the size of a file that comes back.
  for log in "$OUT"/*.log; do
    if [ "$(stat -c %s "$log")" -gt 4000000 ]; then
      tail -c 4000000 "$log" >"$log.end" && mv "$log.end" "$log"
    fi
  done
  ! grep -q '"failed"\|"out of time"\|"no time left"' "$QUIRE_WORK/phases.jsonl"
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
# shellcheck source=tests/gpu/source_hash.sh
. "$HERE/source_hash.sh"
if [ "${1-}" = --phase ]; then
  "phase_$2"
else
  main "$@"
fi
