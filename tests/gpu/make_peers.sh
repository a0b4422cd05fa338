#!/usr/bin/env bash
# Compiles other projects' kernels into a library that make_bundle.sh packs and gpu_bench opens:
# FlashInfer's decode and its paged prefill for sm_90a, behind the functions of peer_api.h. The
# wheel is downloaded once and its hash compared; nothing of it is kept in the repository.
set -euo pipefail

readonly WHEEL=flashinfer_python-0.7.4-py3-none-any.whl
readonly VERSION=flashinfer-python==0.7.4
readonly SHA256=a051a62e09a2738e8b0de47a1944fd2f0f3eff01b728b662141ea660cb09dd32
readonly MAX_BYTES=15000000

usage() {
  cat <<'END'
usage: tests/gpu/make_peers.sh [OUT]

Needs pip, unzip or Python, nvcc 13 and the network; takes minutes. OUT: default build/gpu_peers, a
folder that gets libquire_peers.so. Each object is compiled only if it is older than its source.
END
}

# Prints the folder of the wheel's headers.
headers() {
  local data=$folder/wheel/flashinfer/data
  if [ ! -f "$folder/$WHEEL" ]; then
    python3 -m pip download --quiet --no-deps --dest "$folder" "$VERSION" >&2
  fi
  echo "$SHA256  $folder/$WHEEL" | sha256sum --check --quiet >&2
  if [ ! -d "$data/include" ]; then
    python3 - "$folder/$WHEEL" "$folder/wheel" <<'END'
import sys
import zipfile
wheel = zipfile.ZipFile(sys.argv[1])
folders = ("flashinfer/data/include/", "flashinfer/data/cutlass/include/",
           "flashinfer/data/cutlass/tools/util/include/", "flashinfer/data/cccl/")
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith(folders)])
END
  fi
  echo "$data"
}

# Arguments: source, headers.
compile() {
  local object here
  object=$folder/$(basename "$1").o here=$repo/tests/gpu
  if [ ! "$object" -nt "$1" ] || [ ! "$object" -nt "$here/peer_api.h" ] ||
    [ ! "$object" -nt "$here/flashinfer_peer.h" ]; then
    nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -w \
      -Xcompiler -fPIC -DNDEBUG -DFLASHINFER_PAGE_TOKENS=page_size -I"$repo" \
      -isystem "$2/include" -isystem "$2/cutlass/include" -isystem "$2/cccl/libcudacxx/include" \
      -isystem "$2/cccl/cub" -isystem "$2/cccl/thrust" \
      -isystem "$2/cutlass/tools/util/include" -c "$1" -o "$object"
  fi
}

[ "${1-}" != --help ] || { usage && exit 0; }
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-$repo/build/gpu_peers}
PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$folder"
data=$(headers)
for source in flashinfer_peer.cc flashinfer_decode.cu flashinfer_prefill.cu; do
  compile "$repo/tests/gpu/$source" "$data"
done
nvcc -shared -cudart static -o "$folder/libquire_peers.so" "$folder"/*.o -Xlinker -z -Xlinker defs
strip --strip-unneeded "$folder/libquire_peers.so"
bytes=$(stat -c %s "$folder/libquire_peers.so")
echo "$folder/libquire_peers.so: $bytes bytes, $VERSION"
[ "$bytes" -le "$MAX_BYTES" ] || { echo "make_peers.sh: larger than $MAX_BYTES bytes" >&2 && exit 1; }
