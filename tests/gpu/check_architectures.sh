#!/usr/bin/env bash
# Compiles the kernels as PTX for GPUs that no build names: Blackwell's, whose driver compiles PTX.
# Which file is for which GPU is the rule of kernels/cuda/CMakeLists.txt.
set -uo pipefail

usage() {
  cat <<'END'
usage: tests/gpu/check_architectures.sh [--architectures L] [FILE...]

    --architectures L  compute capabilities; default "80 90 90a 100 120"
    FILE               default all .cu files of kernels/cuda, tests/kernels/cuda and tests/gpu

Needs nvcc 13. Takes about ten seconds a file and GPU. Prints a line for each file, and ends with 1 if
one does not compile.
END
}

# Prints which of the architectures a file is for.
architectures_of() {
  local architecture
  for architecture in $architectures; do
    case $1 in
      *flashinfer_*) ;;  # make_peers.sh compiles another project's headers
      *_wgmma_*) [ "$architecture" != 90a ] || say "$architecture" ;;
      *) [ "$architecture" = 90a ] || [[ $1 == *decode_lines_* && $architecture = 80 ]] ||
        [[ $1 == *load_kernels* && $architecture = 80 ]] || say "$architecture" ;;
    esac
  done
}

say() { printf '%s\n' "$*"; }

architectures="80 90 90a 100 120"
files=()
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit 0 ;;
    --architectures)
      [ $# -ge 2 ] || { usage >&2 && exit 2; }
      architectures=$2
      shift
      ;;
    -*) usage >&2 && exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repo" || exit
PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { say "check_architectures.sh: there is no nvcc" >&2 && exit 2; }
[ ${#files[@]} -gt 0 ] || files=(kernels/cuda/*.cu tests/kernels/cuda/*.cu tests/gpu/*.cu)
log=$(mktemp)
trap 'rm -f "$log" "$log.ptx"' EXIT
failures=0
for file in "${files[@]}"; do
  result=''
  for architecture in $(architectures_of "$file"); do
    if nvcc -std=c++20 --expt-relaxed-constexpr -I. -w -ptx "-arch=compute_$architecture" \
      -o "$log.ptx" "$file" >"$log" 2>&1; then
      result+=" $architecture"
    else
      result+=" $architecture:FAILED"
      failures=$((failures + 1))
      head -n 20 "$log"
    fi
  done
  say "$file:$result"
done
[ "$failures" -eq 0 ]
