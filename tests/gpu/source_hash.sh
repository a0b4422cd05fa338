# shellcheck shell=bash
# Sourced by run.sh and make_bundle.sh: carried programs are used with the sources that they were
# built from and no others.

# The repository; "device": kernels, their tests, benchmarks; "servers": the programs that load the
# library of kernels. Twelve hexadecimal digits of names and contents.
source_hash() {
  (
    cd "$1" || exit
    case $2 in
      device)
        list_sources common kernels/api kernels/cuda kernels/reference tests/gpu tests/kernels
        ;;
      servers)
        list_sources common kernels/api kernels/collective kernels/cpu kernels/gpu proto scheduler worker deploy/cli
        find kernels/cuda -name '*.h' -type f -print0
        ;;
    esac | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | head -c 12
  )
}

list_sources() {
  find "$@" -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.proto' -o -name CMakeLists.txt \) -print0
}
