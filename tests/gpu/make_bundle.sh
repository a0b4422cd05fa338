#!/usr/bin/env bash
# Builds and packs what run.sh starts on a machine with a GPU, so that nothing is compiled there: the
# servers, and benchmarks, tests and kernels compiled by nvcc. README.md says how it is used.
set -euo pipefail

# Bounds the bundle and the source tree together.
readonly MAX_BYTES=60000000

usage() {
  cat <<'END_OF_USAGE'
usage: tests/gpu/make_bundle.sh [flags] [OUT]
       tests/gpu/make_bundle.sh --check DIR

Builds the servers and the programs for a device, and packs them with the sources of GoogleTest, and
with build/gpu_peers/libquire_peers.so if make_peers.sh has made it.
Without nvcc the programs for a device are left out: run.sh compiles them where it runs.

    --build DIR        a configured Release build of the servers; default build/cpu-release
    --device-build DIR default build/gpu_programs, with --emulated build/gpu_programs.emulated
    --architectures L  compute capabilities, as in "80;90"; default 90, an H100 or H200, where
                       kernels with wgmma are compiled for 90a as well
    --emulated         programs for the emulator: what run.sh --rehearse needs
    --check DIR        only says whether every program in DIR, an unpacked bundle, needs nothing but
                       the C and C++ run-time libraries and what lies in DIR/lib
    OUT                default build/gpu_bundle.tar.gz, with --emulated
                       build/gpu_bundle.emulated.tar.gz

The other machine's C and C++ run-time libraries must be as new as the bundle's file BUILT says.
END_OF_USAGE
}

fail() {
  echo "make_bundle.sh: $*" >&2
  exit 1
}

# ---- What programs need -------------------------------------------------------------------------

readonly PEERS=libquire_peers.so
# Libraries of C and C++, of which libdl, libpthread, librt and libresolv come with the C library.
readonly RUN_TIME='^(ld-linux-x86-64|libc|libm|libstdc\+\+|libgcc_s|libdl|libpthread|librt|libresolv)\.so'

dynamic_entries() { readelf -dW "$1" | sed -n "s/.*(\($2\)).*\[\(.*\)\]/\2/p"; }

# Prints name and path of each library that the programs load, except libraries that every machine has.
libraries_of() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    while read -r name path; do
      [[ $name =~ $RUN_TIME ]] || printf '%s %s\n' "$name" "$path"
    done
}

check_programs() {
  local folder=$1 file name path problems=0
  [ -n "$(programs_in "$folder")" ] || fail "there is no program in $folder"
  while read -r file; do
    path=$(dynamic_entries "$file" 'RUNPATH\|RPATH')
    if [ -n "$path" ]; then
      echo "$file looks for libraries in $path"
      problems=$((problems + 1))
    fi
    while read -r name; do
      # Programs for a device are started without the folder lib.
      if ! [[ $name =~ $RUN_TIME ]] &&
        { [[ $file == "$folder"/device/* ]] || [ ! -e "$folder/lib/$name" ]; }; then
        echo "$file needs $name, which is not carried"
        problems=$((problems + 1))
      fi
    done < <(dynamic_entries "$file" NEEDED)
  done < <(programs_in "$folder")
  [ "$problems" -eq 0 ]
}

programs_in() { find "$1"/bin "$1"/lib "$1"/device -type f 2>/dev/null; }

# The latest version of a symbol that any program needs: GLIBC, GLIBCXX or the like.
version_needed() {
  programs_in "$1" | xargs objdump -T 2>/dev/null | grep -o "\b$2_[0-9][0-9.]*" | sort -Vu |
    tail -1 | sed "s/$2_//"
}

# ---- Building -----------------------------------------------------------------------------------

build_servers() {
  [ -f "$build/CMakeCache.txt" ] || fail "no build in $build: run ./deploy/quickstart first"
  cmake --build "$build" --parallel "$(nproc)" --target quire quire_gateway quire_scheduler quire_worker
}

build_device_programs() {
  local flags=(-DCMAKE_BUILD_TYPE=Release -DQUIRE_GTEST_SOURCE=/usr/src/googletest)
  local ccache
  if [ ! -f "$device_build/CMakeCache.txt" ] && command -v ninja >/dev/null; then
    flags+=(-G Ninja)
  fi
  if ccache=$(command -v ccache); then
    flags+=("-DCMAKE_CXX_COMPILER_LAUNCHER=$ccache" "-DCMAKE_CUDA_COMPILER_LAUNCHER=$ccache")
  fi
  if [ "$emulated" = yes ]; then
    flags+=(-DQUIRE_GPU_EMULATED=ON)
  else
    flags+=("-DQUIRE_CUDA_ARCHITECTURES=$architectures")
  fi
  cmake -S "$repo/tests/gpu" -B "$device_build" -Wno-dev "${flags[@]}"
  rm -f "$device_build"/tests/*_test  # tests of an older source tree would be packed too
  cmake --build "$device_build" --parallel "$(nproc)"
}

# ---- Packing ------------------------------------------------------------------------------------

pack_servers() {
  local program name path
  mkdir "$staging/bin" "$staging/lib"
  for program in quire quire_gateway quire_scheduler quire_worker; do
    strip -o "$staging/bin/$program" "$build/bin/$program"
  done
  libraries_of "$build"/bin/{quire,quire_gateway,quire_scheduler,quire_worker} | while read -r name path; do
    strip --strip-unneeded -o "$staging/lib/$name" "$(readlink -f "$path")"
  done
}

pack_device_programs() {
  local file
  mkdir -p "$staging/device/bin" "$staging/device/tests"
  for file in "$device_build"/bin/{gpu_bench,quire_*.so}; do
    strip --strip-unneeded -o "$staging/device/bin/$(basename "$file")" "$file"
  done
  for file in "$device_build/bin/$PEERS" "$repo/build/gpu_peers/$PEERS"; do
    if [ -f "$file" ] && { [ "$emulated" = no ] || [[ $file != */gpu_peers/* ]]; }; then
      strip --strip-unneeded -o "$staging/device/bin/$PEERS" "$file"
    fi
  done
  for file in "$device_build"/tests/*_test; do
    strip -o "$staging/device/tests/$(basename "$file")" "$file"
  done
}

pack_googletest() {
  if [ ! -d /usr/src/googletest/googletest ]; then
    echo "make_bundle.sh: no /usr/src/googletest: the bundle has no sources of GoogleTest" >&2
    return
  fi
  mkdir -p "$staging/googletest"
  cp /usr/src/googletest/CMakeLists.txt "$staging/googletest"
  cp -r /usr/src/googletest/googletest "$staging/googletest"
  rm -rf "$staging"/googletest/googletest/{docs,samples,test}
}

# Prints the facts by which run.sh decides whether it can use the programs.
describe() {
  local commit
  commit=$(git -C "$repo" rev-parse --short=12 HEAD 2>/dev/null) || commit=unknown
  if [ -n "$(git -C "$repo" status --porcelain --untracked-files=no 2>/dev/null)" ]; then
    commit="$commit with changes"
  fi
  cat <<END_OF_FACTS
commit=$commit
server_sources=$(source_hash "$repo" servers)
device_sources=$([ ! -d "$staging/device" ] || source_hash "$repo" device)
emulated=$emulated
architectures=$([ "$emulated" = yes ] || echo "${architectures//;/ }")
nvcc=$([ "$emulated" = yes ] || nvcc --version 2>/dev/null | grep -o 'V[0-9.]*' | tail -1)
peers=$([ ! -f "$staging/device/bin/$PEERS" ] || sha256sum "$staging/device/bin/$PEERS" | head -c 12)
needs_glibc=$(version_needed "$staging" GLIBC)
needs_glibcxx=$(version_needed "$staging" GLIBCXX)
END_OF_FACTS
}

# Prints the size of the tree as it travels: tracked files, and the folder shared/ if it exists.
bytes_of_tree() {
  (
    cd "$repo"
    { git ls-files -z 2>/dev/null; [ ! -d shared ] || find shared -type f -print0; } |
      xargs -0 stat -c %s 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }'
  )
}

report_size() {
  local bytes tree
  bytes=$(stat -c %s "$out")
  tree=$(bytes_of_tree)
  cat "$staging/BUILT"
  echo "unpacked, in KiB:"
  (cd "$staging" && du -sk -- * | sort -rn)
  printf '%s: %d.%d MB; with the source tree of %d.%d MB: %d.%d of %d MB\n' "$out" \
    $((bytes / 1000000)) $((bytes / 100000 % 10)) $((tree / 1000000)) $((tree / 100000 % 10)) \
    $(((bytes + tree) / 1000000)) $(((bytes + tree) / 100000 % 10)) $((MAX_BYTES / 1000000))
  [ $((bytes + tree)) -lt "$MAX_BYTES" ] || fail "too large together"
}

parse() {
  build=$repo/build/cpu-release device_build='' architectures=90 emulated=no out=''
  while [ $# -gt 0 ]; do
    case $1 in
      --help) usage && exit 0 ;;
      --emulated) emulated=yes ;;
      --build | --device-build | --architectures | --check)
        [ $# -ge 2 ] || { usage >&2 && exit 2; }
        case $1 in
          --build) build=$2 ;;
          --device-build) device_build=$2 ;;
          --architectures) architectures=$2 ;;
          --check)
            check_programs "${2%/}"
            exit
            ;;
        esac
        shift
        ;;
      -*) usage >&2 && exit 2 ;;
      *) out=$1 ;;
    esac
    shift
  done
  local suffix=''
  [ "$emulated" = no ] || suffix=.emulated
  device_build=${device_build:-$repo/build/gpu_programs$suffix}
  out=${out:-$repo/build/gpu_bundle$suffix.tar.gz}
  mkdir -p "$(dirname "$out")" || exit
}

main() {
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  # shellcheck source=tests/gpu/source_hash.sh
  . "$repo/tests/gpu/source_hash.sh"
  parse "$@"
  staging=$(mktemp -d)
  trap 'rm -rf "$staging"' EXIT
  PATH=$PATH:/usr/local/cuda/bin
  build_servers
  pack_servers
  if [ "$emulated" = yes ] || command -v nvcc >/dev/null; then
    build_device_programs
    pack_device_programs
  else
    echo "make_bundle.sh: no nvcc: the bundle has no programs for a device" >&2
  fi
  pack_googletest
  describe >"$staging/BUILT"
  check_programs "$staging" || fail "these do not start everywhere"
  tar -c -C "$staging" --owner=0 --group=0 . | gzip -9 >"$out"
  report_size
}

main "$@"
