# Shared by quickstart, test and images: installs missing Debian 12 packages and builds. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_packages=(
  g++ cmake ninja-build pkg-config
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev
  prometheus-cpp-dev libboost-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libssl-dev
  cppzmq-dev libzmq3-dev libmsgpack-cxx-dev
)
package_packages=(dpkg-dev file)  # needed by cpack
test_packages=(
  libgtest-dev libgmock-dev libbenchmark-dev
  git openssl python3 python3-grpcio python3-protobuf python3-msgpack python3-pip python3-setuptools python3-yaml python3-zmq clang-format clang-tidy
  haproxy
)

# Announces the next part, with the run time of the script so far in minutes and seconds.
say() { printf '\033[1m==> %02d:%02d %s\033[0m\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2; }

# install_packages NAME...: installs missing packages with apt-get.
install_packages() {
  local missing=() package as_root=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      { echo "Cannot install missing packages without root or sudo: ${missing[*]}" >&2; return 1; }
    as_root=(sudo)
  fi
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -q >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
}

# install_prometheus FOLDER: prometheus and promtool from Debian's package, unpacked there and put on the PATH.
# Installing the package would also start a Prometheus server on this machine.
install_prometheus() {
  command -v promtool >/dev/null && command -v prometheus >/dev/null && return 0
  if [ ! -x "$1/usr/bin/promtool" ]; then
    say "Unpacking Prometheus"
    mkdir -p "$1"
    (cd "$1" && apt-get download -q prometheus >&2 && dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb)
  fi
  PATH=$1/usr/bin:$PATH
}

# Prints the number of compiler jobs: at most one for each core and for each 1.5 GiB of memory.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  [ "$memory" -lt 1 ] && memory=1
  [ "$memory" -lt "$cores" ] && echo "$memory" || echo "$cores"
}

# build FOLDER CMAKE_ARGUMENT... -- TARGET...: configures once, then builds changed targets.
build() {
  local folder=$1 arguments=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do arguments+=("$1"); shift; done
  shift
  [ -f "$folder/build.ninja" ] ||
    cmake -S "$root" -B "$folder" -G Ninja -Wno-dev "${arguments[@]}" >"$folder.log" 2>&1 ||
    { cat "$folder.log" >&2; return 1; }
  ninja -C "$folder" -j "$(build_jobs)" "$@" >&2
}
