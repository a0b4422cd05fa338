#!/usr/bin/env bash
# Tests that the carried programs start in a root that holds only the C and C++ run-time libraries, Python
# and the commands of every Debian. That root has no toolkit, compiler, CMake or git, and no GPU.
set -uo pipefail

usage() {
  cat <<'END'
usage: tests/gpu/bare_root_test.sh ROOT

ROOT is made by debootstrap (network, a minute) where it does not exist. As the user root. Unpacks
the source tree and the bundles that make_bundle.sh left in build/ there, and starts each program:
those for a device must say that there is no GPU and end with 0, the worker that it has no GPU. With
build/gpu_bundle.emulated.tar.gz it rehearses both calls of run.sh there as well.
END
}

# Runs a command in the root, with a bare environment.
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin "$@"; }

# Runs a command in the root. Arguments: claim, text that its output must have, command...
expect() {
  local claim=$1 text=$2 said rc
  shift 2
  said=$(inside "$@" 2>&1)
  rc=$?
  if [ "$rc" -eq 0 ] && grep -q -- "$text" <<<"$said"; then
    echo "ok: $claim: $(grep -m1 -- "$text" <<<"$said")"
  else
    printf 'FAILED: %s: exit code %d\n%s\n' "$claim" "$rc" "$(tail -n 20 <<<"$said")"
    failures=$((failures + 1))
  fi
}

prepare() {
  [ -e "$root/usr" ] ||
    debootstrap --variant=minbase --include=libstdc++6,python3 bookworm "$root" || exit
  rm -rf "$root/quire"
  mkdir -p "$root/quire/build" "$root/bundle"
  # The tree travels without its history.
  (cd "$repo" && git ls-files -z | tar -c --null -T -) | tar -x -C "$root/quire"
  cp "$repo"/build/gpu_bundle*.tar.gz "$root/quire/build"
  tar -xzf "$repo/build/gpu_bundle.tar.gz" -C "$root/bundle" || exit
  mount -t proc proc "$root/proc" || exit
  trap 'umount "$root/proc"' EXIT
}

main() {
  [[ $# -eq 1 && $1 != -* ]] || { usage && exit 2; }
  local program
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  root=$1 failures=0
  prepare
  for program in "$root"/bundle/device/bin/gpu_bench "$root"/bundle/device/tests/*_test; do
    expect "$(basename "$program")" '^no GPU: ' "${program#"$root"}"
  done
  for program in quire quire_gateway quire_scheduler quire_worker; do
    expect "$program" "^$program " LD_LIBRARY_PATH=/bundle/lib "/bundle/bin/$program" --version
  done
  expect "quire_worker --device cuda" 'no GPU 0: ' LD_LIBRARY_PATH=/bundle/lib \
    QUIRE_LIBRARY_PATH=/bundle/device/bin sh -c \
    '! /bundle/bin/quire_worker --device cuda --model /quire/deploy/model --listen unix:/tmp/w'
  expect "run.sh" '^run.sh: no GPU' bash /quire/tests/gpu/run.sh /out
  if [ -e "$root/quire/build/gpu_bundle.emulated.tar.gz" ]; then
    expect "run.sh --rehearse" '^| all tests pass on the device | 0 of .* | pass |' \
      bash /quire/tests/gpu/run.sh --rehearse /out
  fi
  [ "$failures" -eq 0 ]
}

main "$@"
