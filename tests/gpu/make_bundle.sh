#!/usr/bin/env bash
# Packs what run.sh cannot build on a machine with a GPU: the servers, which need gRPC and protobuf,
# with their shared libraries, and the sources of GoogleTest. From a finished Release build.
set -euo pipefail

readonly MAX_BYTES=$((40 << 20))

usage() {
  cat <<'END'
usage: tests/gpu/make_bundle.sh [--build DIR] [OUT]

    --build DIR   a finished Release build; default build/cpu-release
    OUT           default build/gpu_bundle.tar.gz

The programs are started with LD_LIBRARY_PATH=lib; the C and C++ run-time libraries are the other
machine's, which must be as new as this one's.
END
}

# The libraries of the arguments, without those that every machine has of its own.
libraries_of() {
  local own='^(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s)\.so'
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    while read -r name path; do
      [[ $name =~ $own ]] || printf '%s %s\n' "$name" "$path"
    done
}

main() {
  local repo build out staging
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  build=$repo/build/cpu-release
  out=$repo/build/gpu_bundle.tar.gz
  while [ $# -gt 0 ]; do
    case $1 in
      --help) usage && exit 0 ;;
      --build) build=${2:?--build needs a folder} && shift ;;
      -*) usage >&2 && exit 2 ;;
      *) out=$1 ;;
    esac
    shift
  done

  staging=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$staging'" EXIT
  mkdir "$staging/bin" "$staging/lib"
  for program in quire quire_scheduler quire_worker; do
    if [ ! -x "$build/bin/$program" ]; then
      echo "make_bundle.sh: no $build/bin/$program: run ./deploy/quickstart first" >&2
      exit 1
    fi
    strip -o "$staging/bin/$program" "$build/bin/$program"
  done
  libraries_of "$build"/bin/{quire,quire_scheduler,quire_worker} | while read -r name path; do
    strip --strip-unneeded -o "$staging/lib/$name" "$(readlink -f "$path")"
  done
  if [ -d /usr/src/googletest/googletest ]; then
    mkdir -p "$staging/googletest"
    cp /usr/src/googletest/CMakeLists.txt "$staging/googletest"
    cp -r /usr/src/googletest/googletest "$staging/googletest"
    rm -rf "$staging"/googletest/googletest/{docs,samples,test}
  else
    echo "make_bundle.sh: no /usr/src/googletest: the bundle has no sources of GoogleTest" >&2
  fi

  tar -czf "$out" -C "$staging" --owner=0 --group=0 .
  local bytes
  bytes=$(stat -c %s "$out")
  echo "$out: $((bytes >> 10)) KiB, $(find "$staging/lib" -type f | wc -l) libraries"
  if [ "$bytes" -gt "$MAX_BYTES" ]; then
    echo "make_bundle.sh: larger than $((MAX_BYTES >> 20)) MiB" >&2
    exit 1
  fi
}

main "$@"
