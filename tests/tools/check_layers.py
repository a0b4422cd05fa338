#!/usr/bin/env python3
"""Checks every #include of ours against the layer table. Prints each violation; exit 1 if any.

A folder may include itself and what the table lists for it, nothing else. Third-party headers are
checked by family: proto and gRPC only where the table says so.
"""
import pathlib
import re
import sys

COMMON = ["common/base", "common/json", "common/model"]

# folder: (folders of ours it may include, third-party families it may include)
LAYERS = {
    "common/base": ([], []),
    "common/json": (["common/base"], []),
    "common/flags": (["common/base", "common/wire"], []),
    "common/model": (["common/base", "common/json"], []),
    "common/step": (["common/base", "common/model"], []),
    "common/wire": (COMMON + ["common/metrics", "common/step", "proto"], ["grpc", "protobuf", "prometheus", "openssl"]),
    "common/metrics": (["common/base"], ["prometheus"]),
    "common/http": (["common/base", "common/wire"], ["boost", "openssl"]),
    "kernels/collective": (["common/base"], ["openssl"]),
    "kernels/api": (["kernels/collective", "common/base", "common/model"], []),
    "kernels/reference": (["kernels/api", "common/base", "common/model"], []),
    "kernels/cpu": (["kernels/api", "common/base", "common/model"], []),
    "kernels/cuda": (["kernels/api", "common/base", "common/model"], ["cuda"]),
    "kernels/gpu": (["kernels/cuda", "kernels/api", "kernels/collective", "common/base", "common/model"], []),
    "scheduler/text": (COMMON, []),
    "scheduler/kv_cache": (["common/base", "common/model"], []),
    "scheduler/kv_events": (["scheduler/kv_cache", "scheduler/text", "common/base", "common/metrics"],
                            ["prometheus", "zmq", "msgpack"]),
    "scheduler/core": (["scheduler/kv_cache", "common/base", "common/model", "common/step"], []),
    "scheduler/sim": (["scheduler/core", "common/base", "common/model", "common/step"], []),
    "scheduler/step_log": (["scheduler/core", "common/base", "common/model", "common/step"], []),
    "scheduler/group": (["scheduler/core", "common/base", "common/model", "common/step"], []),
    "scheduler/loop": (["scheduler/core", "scheduler/step_log", "scheduler/text", "common/base", "common/model",
                        "common/step"], []),
    "scheduler/metrics": (["scheduler/core", "scheduler/loop", "common/base", "common/metrics", "common/step"],
                          ["prometheus"]),
    "scheduler/rpc": (["scheduler/group", "scheduler/loop", "scheduler/core", "scheduler/text", "common", "proto"],
                      ["grpc", "protobuf"]),
    "worker/kv_cache": (["kernels/api", "common/base", "common/model", "common/step"], []),
    "worker/model": (["worker/kv_cache", "kernels/api"] + COMMON, []),
    "worker/runtime": (["worker/model", "worker/kv_cache", "kernels/api", "kernels/collective", "common/base",
                        "common/model", "common/step"], []),
    "worker/rpc": (["worker/runtime", "worker/model", "worker/kv_cache", "kernels/api", "kernels/collective", "common",
                    "proto"], ["grpc", "protobuf"]),
    "worker/metrics": (["worker/runtime", "common/base", "common/metrics"], ["prometheus"]),
    # Whole programs: main.cc and the configuration read by it.
    "scheduler": (["scheduler", "common", "proto"], ["grpc", "protobuf", "prometheus"]),
    "worker": (["worker", "kernels/api", "kernels/collective", "kernels/cpu", "kernels/gpu", "common", "proto"],
               ["grpc", "protobuf", "prometheus"]),
    "deploy/clients/cpp": (["proto"], ["grpc", "protobuf"]),  # and no abseil: it is for others
    "deploy/gateway": (["deploy/gateway", "deploy/clients/cpp", "scheduler/text", "common", "proto"],
                       ["boost", "grpc", "protobuf", "prometheus"]),
    "deploy/gateway/page": (["common/http"], []),
    "deploy/gateway/template": (["common/base"], []),
    "deploy/cli": (["common", "proto", "scheduler/sim", "scheduler/step_log", "deploy/clients/cpp"],
                   ["grpc", "protobuf"]),
    "deploy/gateway/openai": (["common/base", "common/json", "proto"], ["protobuf"]),
}

FAMILIES = {
    "grpc": re.compile(r"^(grpc|grpcpp)/"),
    "protobuf": re.compile(r"^google/protobuf/"),
    "prometheus": re.compile(r"^prometheus/"),
    "boost": re.compile(r"^boost/"),
    "openssl": re.compile(r"^openssl/"),
    "cuda": re.compile(r"^(cuda|cublas|nccl)"),
    "zmq": re.compile(r"^zmq"),
    "msgpack": re.compile(r"^msgpack"),
}
OURS = re.compile(r"^(common|kernels|scheduler|worker|deploy|proto|tests)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def folder_of(path):
    """The longest table entry that holds path."""
    parts = path.split("/")[:-1]
    for n in range(len(parts), 0, -1):
        name = "/".join(parts[:n])
        if name in LAYERS:
            return name
    return None


def allowed(target, own, folders):
    return any(target == f or target.startswith(f + "/") for f in [own] + folders)


def check(path, text):
    own = folder_of(path)
    if own is None:
        return [f"{path}: folder is not in the layer table"]
    folders, families = LAYERS[own]
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        if OURS.match(target):
            parent = target.rsplit("/", 1)[0]
            # "scheduler" as a program may include its rooms; a room may not include the program.
            if not allowed(parent, own, folders):
                faults.append(f"{path}:{number}: {own} may not include {target}")
        for family, pattern in FAMILIES.items():
            if pattern.match(target) and family not in families:
                faults.append(f"{path}:{number}: {own} may not include {family} ({target})")
    return faults


def self_test():
    assert check("scheduler/core/a.cc", '#include "scheduler/rpc/b.h"\n')
    assert check("scheduler/core/a.cc", "#include <grpcpp/server.h>\n")
    assert check("scheduler/kv_cache/a.h", '#include "scheduler/core/request.h"\n')
    assert check("worker/rpc/a.cc", '#include "scheduler/loop/b.h"\n')
    assert check("kernels/cpu/a.cc", '#include "proto/v1/worker.pb.h"\n')
    assert not check("scheduler/rpc/a.cc", '#include "scheduler/core/b.h"\n#include <grpcpp/x.h>\n')
    assert not check("scheduler/main.cc", '#include "scheduler/rpc/b.h"\n')


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parents[2]
    faults, files = [], 0
    for top in ("common", "kernels", "scheduler", "worker", "deploy"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                files += 1
                faults += check(str(path.relative_to(root)), path.read_text(encoding="utf-8"))
    print("\n".join(faults))
    print(f"{files} files, {len(faults)} violations")
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
