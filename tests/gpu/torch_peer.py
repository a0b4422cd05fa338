#!/usr/bin/env python3
"""Measures PyTorch on the cases that gpu_bench measured, and prints the ratios.

Attention: scaled_dot_product_attention with the flash, cuDNN and memory-efficient backends forced one
by one, on contiguous keys and values: no paging, so an upper bound of what it could do in a server.
Decode is tried with the heads of a group as separate heads and folded into queries; the faster one
counts. Products: torch.nn.functional.linear. The method is gpu_bench's: random inputs in several sets,
together larger than the L2 cache, one graph for all, the median of 21 runs between events.

A line of JSON for each figure goes to --json, with the "case" of the figure it belongs to. The ratio is
the peer's time over ours: above 1 we are faster.
"""
import argparse
import json
import pathlib
import sys
import time

REPEATS = 21
WARM_UPS = 3
ROTATION_BYTES = 192e6
MIN_REPEAT_US = 400.0
MAX_CALLS = 1024
BACKENDS = ("flash", "cudnn", "efficient")


class Machine:
    """PyTorch and the clock of the device."""

    def __init__(self, torch):
        self.torch = torch
        self.generator = torch.Generator(device="cuda")
        self.generator.manual_seed(1)

    def random(self, *shape):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16,
                                generator=self.generator)

    def backend(self, name):
        attention = self.torch.nn.attention
        backends = {"flash": attention.SDPBackend.FLASH_ATTENTION,
                    "cudnn": attention.SDPBackend.CUDNN_ATTENTION,
                    "efficient": attention.SDPBackend.EFFICIENT_ATTENTION}
        return attention.sdpa_kernel([backends[name]])

    def raise_clocks(self, seconds=0.5):
        """An idle GPU needs a while to leave its low clock."""
        start = time.monotonic()
        x = self.random(4096, 4096)
        while time.monotonic() - start < seconds:
            self.torch.nn.functional.linear(x, x)
            self.torch.cuda.synchronize()

    def record(self, calls, count):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for i in range(count):
                calls[i % len(calls)]()
        return graph

    def time_runs(self, run, count):
        """Microseconds of each run; all are enqueued before the first is waited for."""
        cuda = self.torch.cuda
        events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
                  for _ in range(count)]
        for begin, end in events:
            begin.record()
            run()
            end.record()
        cuda.synchronize()
        return [begin.elapsed_time(end) * 1e3 for begin, end in events]

    def measure(self, calls):
        """The time of one call; calls: one for each set of inputs, each returns its output."""
        for call in calls:
            if not bool(self.torch.isfinite(call()).all()):
                raise RuntimeError("the output is not finite")
        self.torch.cuda.synchronize()
        graph = self.record(calls, len(calls))
        estimate = self.time_runs(graph.replay, WARM_UPS)[-1]
        count = len(calls)
        if estimate < MIN_REPEAT_US:
            count = min(MAX_CALLS, count * int(MIN_REPEAT_US / max(estimate, 1.0) + 1))
            graph = self.record(calls, count)
            self.time_runs(graph.replay, WARM_UPS)
        times = sorted(us / count for us in self.time_runs(graph.replay, REPEATS))
        return {"us": times[len(times) // 2], "us_min": times[0], "us_max": times[-1],
                "repeats": REPEATS, "calls_a_repeat": count, "input_sets": len(calls)}


def num_sets(figure):
    return max(1, min(128, int(ROTATION_BYTES / figure["bytes"]) + 1))


def attend(torch, q, k, v, **arguments):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)


def decode_forms(machine, figure):
    """Name and list of calls of each way to write one decode step; K and V are shared."""
    torch = machine.torch
    batch, seq_len = figure["batch"], figure["seq_len"]
    heads, kv_heads, head_dim = figure["num_heads"], figure["num_kv_heads"], figure["head_dim"]
    sets = [(machine.random(batch, kv_heads, seq_len, head_dim),
             machine.random(batch, kv_heads, seq_len, head_dim)) for _ in range(num_sets(figure))]
    q = machine.random(batch, heads, 1, head_dim)
    folded = q.view(batch, kv_heads, heads // kv_heads, head_dim)
    yield "folded", [lambda k=k, v=v: attend(torch, folded, k, v) for k, v in sets]
    if heads != kv_heads:
        yield "grouped", [lambda k=k, v=v: attend(torch, q, k, v, enable_gqa=True)
                          for k, v in sets]


def prefill_forms(machine, figure):
    torch = machine.torch
    batch, chunk = figure["batch"], figure["chunk"]
    heads, kv_heads, head_dim = figure["num_heads"], figure["num_kv_heads"], figure["head_dim"]
    seq_len = figure["context"] + chunk
    sets = [(machine.random(batch, kv_heads, seq_len, head_dim),
             machine.random(batch, kv_heads, seq_len, head_dim)) for _ in range(num_sets(figure))]
    q = machine.random(batch, heads, chunk, head_dim)
    mask = {"is_causal": True}
    if figure["context"] > 0:
        mask = {"attn_mask": torch.nn.attention.bias.causal_lower_right(chunk, seq_len)}
    if heads == kv_heads:
        yield "plain", [lambda k=k, v=v: attend(torch, q, k, v, **mask) for k, v in sets]
        return
    yield "grouped", [lambda k=k, v=v: attend(torch, q, k, v, enable_gqa=True, **mask)
                      for k, v in sets]
    # For backends without grouped heads, K and V are repeated for each head before the measurement.
    group = heads // kv_heads
    expanded = [(k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)) for k, v in sets]
    yield "expanded", [lambda k=k, v=v: attend(torch, q, k, v, **mask) for k, v in expanded]


def short(error):
    return " ".join(str(error).split())[:160]


def measure_attention(machine, figure, forms):
    """A figure for each backend: its fastest form."""
    best, failures = {}, {}
    for form, calls in forms(machine, figure):
        for backend in BACKENDS:
            if form == "expanded" and backend in best:
                continue
            try:
                with machine.backend(backend):
                    timing = machine.measure(calls)
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                failures[backend] = short(error)
                continue
            if backend not in best or timing["us"] < best[backend]["us"]:
                best[backend] = {**timing, "form": form}
        del calls
    for backend in BACKENDS:
        if backend in best:
            yield {"peer": f"sdpa {backend}", **best[backend]}
        else:
            yield {"peer": f"sdpa {backend}", "note": failures.get(backend, "not tried")}


def measure_product(machine, figure):
    torch = machine.torch
    weights = [machine.random(figure["out_features"], figure["in_features"]) * 0.02
               for _ in range(num_sets(figure))]
    x = machine.random(figure["rows"], figure["in_features"])
    calls = [lambda w=w: torch.nn.functional.linear(x, w) for w in weights]
    timing = machine.measure(calls)
    if figure.get("y_dtype") != "bfloat16":
        timing["note"] = "its output is bf16, ours fp32"
    yield {"peer": "linear", **timing}


def wanted(figure):
    if "us" not in figure:
        return False
    if figure["group"] == "gemm":
        return figure.get("variant") == "fastest"
    if figure.get("cache_dtype") != "bfloat16" or figure.get("block_size") != 16:
        return False
    if "peer" in figure:
        return False
    if figure["group"] == "decode":
        return figure.get("seq_len", 0) > 0 and figure.get("query_len", 1) == 1
    return figure["group"] == "prefill"


def peers_of(machine, figure):
    if figure["group"] == "gemm":
        return measure_product(machine, figure)
    forms = decode_forms if figure["group"] == "decode" else prefill_forms
    return measure_attention(machine, figure, forms)


def key_of(figure):
    """Figures of one key differ in what only our kernels have: one peer serves them all."""
    names = ("group", "batch", "seq_len", "query_len", "chunk", "context", "num_heads", "num_kv_heads",
             "head_dim", "shape", "rows")
    return tuple(figure.get(name) for name in names)


def complete(peer, figure):
    line = {"group": figure["group"], "case": figure["case"], "of": figure.get("of", figure["case"]), **peer}
    if "us" in peer:
        line["our_us"] = figure["us"]
        line["ratio"] = peer["us"] / figure["us"]
        if "bytes" in figure:
            line["gb_per_s"] = figure["bytes"] / peer["us"] / 1e3
        if "flops" in figure:
            line["tflop_per_s"] = figure["flops"] / peer["us"] / 1e6
        if "floor_us" in figure:
            line["floor_us"] = figure["floor_us"]
            line["fraction"] = figure["floor_us"] / peer["us"]
    return line


def table_line(line):
    name = f"  {line['case']}: {line['peer']}"
    if "us" not in line:
        return f"{name}: not possible: {line['note']}"
    form = f" ({line['form']})" if "form" in line else ""
    return f"{name + form:<80} {line['us']:10.2f} us  ours {line['our_us']:10.2f} us  " \
           f"ratio {line['ratio']:5.2f}"


def read_lines(path):
    """A line that was cut off is left out."""
    objects = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            objects.append(json.loads(line))
        except ValueError:
            pass
    return objects


def read_figures(path):
    figures = read_lines(path)
    order = ("prefill", "gemm", "decode")  # the many last
    return sorted(filter(wanted, figures), key=lambda figure: order.index(figure["group"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=pathlib.Path, required=True,
                        help="the file of gpu_bench --json")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="appended to")
    parser.add_argument("--limit-seconds", type=float, default=1e9)
    arguments = parser.parse_args()
    start = time.monotonic()
    try:
        import torch
        import torch.nn.attention.bias  # noqa: F401
    except ImportError as error:
        print(f"no PyTorch: {error}; nothing was measured")
        return 0
    if not torch.cuda.is_available():
        print("no GPU: PyTorch sees none; nothing was measured")
        return 0
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name(0)}")
    machine = Machine(torch)
    machine.raise_clocks()
    seen = set()
    with arguments.json.open("a", encoding="utf-8") as out:
        for figure in read_figures(arguments.figures):
            if key_of(figure) in seen:
                continue
            seen.add(key_of(figure))
            if time.monotonic() - start > arguments.limit_seconds:
                print("  out of time: what would follow is left out")
                break
            try:
                for peer in peers_of(machine, figure):
                    line = complete(peer, figure)
                    out.write(json.dumps(line) + "\n")
                    out.flush()
                    print(table_line(line), flush=True)
            except torch.cuda.OutOfMemoryError:
                print(f"  {figure['case']}: not enough memory", flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
