"""The targets of a run on a GPU, and whether the run met them.

Each target reads the results of summarize.py. It returns the measurement as text, and True, False, or
None if it was not measured. A rehearsal measures no speed. Targets are fractions of the same run's
ceilings and peers where possible; times in microseconds are an H200's and are judged on an H200 alone.
Decode by lines is judged, which workers run, and persistent prefill, which workers run once
kFastestIsPersistent (paged_prefill.cu) says so. Other kernels are only compared.
"""

DECODE_KERNEL = "lines"
PREFILL_KERNELS = ("persistent", "wgmma")  # the first that was measured in any case counts
DECODE_FRACTION = 0.92        # of the speed of a copy
DECODE_LEAST_TOKENS = 65536   # of all sequences
ALL_LAYERS, FEW_LAYERS = 32, 4  # of gpu_bench's pools that fill the device
LAYERS_FRACTION = 0.95
WINDOWS_FRACTION = 0.97
STEP_OVER_FLOOR = 1.05
COMPANY_COST = 0.05            # of tokens/s
PEER_ERROR = 1e-2              # of a peer that counts
# Case without its kernel, and most microseconds on an H200.
DECODE_US = {"28/4 heads of 128, block 16, 8 x 8192": 34.5, "32/8 heads of 128, block 16, 1 x 512": 6.0,
             "32/8 heads of 128, block 16, e4m3, 128 x 8192": 560.0}
# Cases in which cuDNN, on gathered K and V, is the peer.
CUDNN_DECODES = ("32/8 heads of 128, block 16, 8 x 8192", "32/8 heads of 128, block 16, 32 x 8192",
                 "32/8 heads of 128, block 16, 64 x 4096", "32/8 heads of 128, block 16, 128 x 8192")
CUDNN_PREFILLS = ("32/8 heads of 128, block 16, 1 x 8192 after 0",
                  "32/8 heads of 128, block 16, 1 x 2048 after 0",
                  "32/8 heads of 128, block 16, 16 x 512 after 0",
                  "32/8 heads of 64, block 16, 1 x 8192 after 0",
                  "32/8 heads of 96, block 16, 1 x 8192 after 0",
                  "32/8 heads of 256, block 16, 1 x 8192 after 0")
STEP_BATCH, STEP_CONTEXT = 64, 4096
OVER_TRANSFORMERS = 5.0
SWAP_GB_PER_S = 45.0
DISTURBED_REQUESTS = 10000
SANITIZER_FOUND = 86           # the exit code that run.sh asks compute-sanitizer for
NOT_MEASURED = ("not measured", None)


def part(results, name):
    """Returns the results of a phase; empty if it left none."""
    return results.get(name) or {}


def note_of(results, name):
    """Returns a phase's note as the reason: its first line, and its last, where a server's output has the cause."""
    lines = part(results, name).get("note", "").splitlines()
    if not lines:
        return NOT_MEASURED
    return "not measured: " + " ".join(dict.fromkeys((lines[0], lines[-1])))[:300], None


def worst(figures, key):
    return min(figures, key=lambda figure: figure[key], default=None)


def of_group(results, group, key):
    return [figure for figure in results["figures"] if figure["group"] == group and key in figure]


# ---- Correctness --------------------------------------------------------------------------------


def tests_pass(results):
    programs = results["tests"]
    if not programs:
        return NOT_MEASURED
    lost = [program["program"] for program in programs if "tests" not in program]
    failures = sum(program.get("failures", 0) for program in programs)
    tests = sum(program.get("tests", 0) for program in programs)
    text = f"{failures} of {tests} tests failed"
    if lost:
        text += "; no result of " + ", ".join(lost)
    return text, failures == 0 and not lost


def sanitizer_result(run):
    """One word for a run of compute-sanitizer: clean, found, unfinished, refused or failed."""
    if run.get("refused"):
        return "refused"
    return {0: "clean", SANITIZER_FOUND: "found", 124: "unfinished", 137: "unfinished"}.get(
        run["rc"], "failed")


def sanitizers_are_clean(results):
    """Only a tool's report is a finding. A test that fails under a tool is a failure all the same."""
    runs = {}
    for run in results["sanitizers"]:
        runs.setdefault(sanitizer_result(run), []).append(run)
    if not runs:
        return NOT_MEASURED
    if set(runs) == {"refused"}:
        return "it does not support this device", None
    found, failed, unfinished = (runs.get(key, []) for key in ("found", "failed", "unfinished"))

    def names(of):
        return ", ".join(f"{run['tool']} {run['program']}" for run in of)
    ended = len(found) + len(failed) + len(runs.get("clean", []))
    text = f"{len(found)} of {ended} runs found something"
    if found:
        text += ": " + names(found)
    if failed:
        text += "; failed: " + ", ".join(f"{names([run])} (exit {run['rc']})" for run in failed)
    if unfinished:
        text += "; not finished: " + names(unfinished)
    pairs = {(run["tool"], run["program"]) for run in results["sanitizers"]}
    missing = [f"{tool} {program}" for tool in sorted({tool for tool, _ in pairs})
               for program in sorted({program for _, program in pairs})
               if (tool, program) not in pairs]
    if missing:
        text += "; no result of " + ", ".join(missing)
    if found or failed:
        return text, False
    return text, None if unfinished or missing or "refused" in runs else True


def outputs_are_right(results):
    figures = results["figures"]
    if not figures:
        return NOT_MEASURED
    wrong = [figure["case"] for figure in figures if not figure["ok"]]
    return f"{len(wrong)} of {len(figures)} figures are wrong", not wrong


def answers_are_the_cpus(results):
    served = part(results, "served")
    if "against_cpu" not in served:
        return note_of(results, "served")
    cases = served["against_cpu"]["cases"]
    good = sum(case["ok"] for case in cases)
    return f"{good} of {len(cases)} answers", served["against_cpu"]["ok"]


def fp8_answers_are_near(results):
    served = part(results, "served")
    if "fp8_cache_against_cpu" not in served:
        return note_of(results, "served")
    error = served["fp8_cache_against_cpu"]["largest_logprob_error"]
    return f"log-probabilities within {error:.3f}", served["fp8_cache_against_cpu"]["ok"]


def two_ranks_are_one(results):
    served = part(results, "served")
    if "two_ranks_against_one" not in served:
        return note_of(results, "served")
    cases = served["two_ranks_against_one"]["cases"]
    good = sum(case["ok"] for case in cases)
    return f"{good} of {len(cases)} answers", served["two_ranks_against_one"]["ok"]


def graphs_are_eager(results):
    served = part(results, "served")
    if "same_bits_without_graphs" not in served:
        return note_of(results, "served")
    same = served["same_bits_without_graphs"]
    return "same tokens and log-probabilities" if same else "answers differ", same


def windows_are_tables(results):
    served = part(results, "served")
    if "through_windows" not in served:
        return note_of(results, "served")
    same = served["through_windows"]["bits"]
    return served["through_windows"].get(
        "note", "same tokens and log-probabilities" if same else "answers differ"), same


def speed_of_windows(results):
    us = {(figure["case"].rsplit(", ", 1)[0], figure["windows"]): figure["us"]
          for figure in of_group(results, "windows", "us") if "windows" in figure}
    ratios = {case: us[case, False] / us[case, True] for case, _ in us
              if (case, False) in us and (case, True) in us}
    if not ratios:
        return NOT_MEASURED
    case = min(ratios, key=ratios.get)
    return f"{ratios[case]:.3f} ({case})", ratios[case] >= WINDOWS_FRACTION


def one_answer(results):
    company = part(results, "company")
    if "different_answers" not in company:
        return note_of(results, "company")
    different = company["different_answers"] + company["different_answers_with_reuse"]
    asked = company["requests"]
    text = f"{different} of {asked} answers differ; costs {company['throughput_cost']:.0%} of tokens/s"
    enough = asked >= DISTURBED_REQUESTS or None
    return text, False if different else enough


# ---- Speed --------------------------------------------------------------------------------------


def is_of_h200(results):
    return "H200" in results["machine"].get("gpu.name", "")


def large_decodes(results):
    """Returns the figures of decode with the method's own choices, without figures that try other choices."""
    return [figure for figure in of_group(results, "decode", "fraction")
            if figure.get("kernel") == DECODE_KERNEL and figure.get("query_len") == 1
            and figure.get("cache_dtype") == "bfloat16" and figure.get("block_size") in (16, 64)
            and figure.get("head_dim") == 128
            and figure.get("batch", 0) * figure.get("seq_len", 0) >= DECODE_LEAST_TOKENS
            and "CTAs" not in figure["case"] and ", split" not in figure["case"]
            and "num_layers" not in figure]


def decode_bandwidth(results):
    figures = large_decodes(results)
    figure = worst(figures, "fraction")
    if figure is None:
        return NOT_MEASURED
    good = sum(figure["fraction"] >= DECODE_FRACTION for figure in figures)
    return f"{figure['fraction']:.3f} ({figure['case']}); {good} of {len(figures)} cases", good == len(figures)


def decode_time(case):
    def measure(results):
        for figure in of_group(results, "decode", "us"):
            if figure.get("kernel") == DECODE_KERNEL and figure.get("of") == case and \
                    figure["case"] == f"{case}, {DECODE_KERNEL}":
                met = figure["us"] <= DECODE_US[case] if is_of_h200(results) else None
                return f"{figure['us']:.1f} us", met
        return NOT_MEASURED
    return measure


def against_splits(results):
    """Compares the kernels of decode, measured in turn. Says in how many cases the new one is faster."""
    us = {}
    for figure in of_group(results, "decode", "us"):
        if figure.get("query_len") == 1 and "kernel" in figure and "CTAs" not in figure["case"]:
            us.setdefault(figure["of"], {})[figure["kernel"]] = figure["us"]
    ratios = {case: of["splits"] / of[DECODE_KERNEL] for case, of in us.items()
              if "splits" in of and DECODE_KERNEL in of}
    if not ratios:
        return NOT_MEASURED
    case = min(ratios, key=ratios.get)
    slower = sum(ratio < 1.0 for ratio in ratios.values())
    return f"slower in {slower} of {len(ratios)} cases; at worst {ratios[case]:.2f} x ({case})", slower == 0


def speed_of_all_layers(num_layers, layer_major):
    """Returns a target: the speed at which decode reads blocks of all layers of an 8B model in a pool that
    fills the device, over its speed in another pool."""
    def measure(results):
        speeds = {(figure["num_layers"], bool(figure["layer_major"])): figure["gb_per_s"]
                  for figure in of_group(results, "decode", "gb_per_s")
                  if "num_layers" in figure and figure.get("kernel") == DECODE_KERNEL}
        whole, other = speeds.get((ALL_LAYERS, False)), speeds.get((num_layers, layer_major))
        if whole is None or other is None:
            return NOT_MEASURED
        return f"{whole:.0f} / {other:.0f} GB/s: {whole / other:.3f}", \
            whole / other >= LAYERS_FRACTION
    return measure


def own_figures(results, group):
    """Returns the figures of the group's kernel that the worker uses, by case without kernel."""
    kernels = {figure["kernel"] for figure in of_group(results, group, "us") if "kernel" in figure}
    wanted = (DECODE_KERNEL,) if group == "decode" else PREFILL_KERNELS
    kernel = next((name for name in wanted if name in kernels), None)
    return {figure["of"]: figure for figure in of_group(results, group, "us")
            if kernel is not None and figure.get("kernel") == kernel and "CTAs" not in figure["case"]}


def compared_with(group, name, cases=None, is_wanted=None):
    """Returns a target: the peer's time over ours, at least 1 in all of the cases that were measured. All of
    `cases`, if given, must be. Otherwise the cases are those that is_wanted(figure) accepts."""
    def compare(results):
        own = own_figures(results, group)
        ratios = {}
        for peer in results["peers"]:
            figure = own.get(peer.get("of"))
            if (peer["group"] == group and "us" in peer and peer["peer"].startswith(name) and figure is not None
                    and peer.get("error", 0.0) <= PEER_ERROR
                    and (peer["of"] in cases if cases else is_wanted(figure))):
                ratios[peer["of"]] = peer["us"] / figure["us"]
        if not ratios:
            return NOT_MEASURED
        case = min(ratios, key=ratios.get)
        text = f"its time / ours {ratios[case]:.2f} ({case}); {len(ratios)} cases"
        missing = [case for case in cases or () if case not in ratios]
        if missing:
            text += "; not measured: " + ", ".join(missing)
        return text, False if ratios[case] < 1.0 else None if missing else True
    return compare


def is_large_decode(figure):
    return (figure.get("query_len") == 1 and figure["batch"] * figure["seq_len"] >= DECODE_LEAST_TOKENS
            and "num_layers" not in figure and ", split" not in figure["case"])


def has_context(figure):
    return figure["context"] > 0


def step_of_8b(results):
    large = part(results, "large")
    if "step_ms" not in large:
        return note_of(results, "large")
    ratio = large["step_over_floor"]
    text = (f"{large['step_ms']:.2f} ms at a mean context of {large['context']:.0f}, "
            f"floor {large['floor_ms']:.2f} ms: {ratio:.3f}")
    whole = large.get("batch") == STEP_BATCH and large["context"] >= STEP_CONTEXT
    return text, ratio <= STEP_OVER_FLOOR if whole else None


def cost_of_company(results):
    company = part(results, "company")
    if "throughput_cost" not in company:
        return note_of(results, "company")
    return f"{company['throughput_cost']:.1%} of tokens/s", company["throughput_cost"] <= COMPANY_COST


def over_transformers(results):
    result = part(results, "transformers")
    if "ratio" not in result:
        note = result.get("peer", {}).get("note")
        return (note, None) if note else note_of(results, "transformers")
    return (f"{result['tokens_per_s']:.0f} and {result['peer']['tokens_per_s']:.0f} tokens/s: "
            f"{result['ratio']:.1f} x", result["ratio"] >= OVER_TRANSFORMERS)


def swap_rate(direction):
    def measure(results):
        # A block of 16 tokens of an 8B Llama in bf16 is 2 MiB.
        figures = [figure for figure in of_group(results, "copies", "gb_per_s")
                   if figure.get("direction") == direction and figure.get("piece_bytes") == 2 << 20]
        rate = max((figure["gb_per_s"] for figure in figures), default=None)
        return NOT_MEASURED if rate is None else (f"{rate:.1f} GB/s", rate >= SWAP_GB_PER_S)
    return measure


CORRECTNESS = (
    ("all tests pass on the device", tests_pass),
    ("compute-sanitizer finds nothing", sanitizers_are_clean),
    ("probed outputs and bit checks of gpu_bench are right", outputs_are_right),
    ("greedy answers of the served model are the CPU's", answers_are_the_cpus),
    ("with an fp8 cache near the CPU's", fp8_answers_are_near),
    ("two ranks that share a GPU write one's tokens", two_ranks_are_one),
    ("graphs give the bits of eager steps", graphs_are_eager),
    ("answers through windows have the bits of block tables", windows_are_tables),
    (f"one answer in {DISTURBED_REQUESTS} disturbed requests", one_answer),
)
SPEED = (
    (f"decode attention >= {DECODE_FRACTION} of copy bandwidth (64k tokens or more, bf16, blocks 16 and 64)",
     decode_bandwidth),
    *((f"decode, {case}, <= {most} us on an H200", decode_time(case)) for case, most in DECODE_US.items()),
    ("decode by lines is never slower than by splits", against_splits),
    ("decode >= 1.0 of cuDNN's speed on gathered K and V",
     compared_with("decode", "sdpa cudnn", CUDNN_DECODES)),
    ("decode >= 1.0 of FlashInfer's speed (64k tokens or more)",
     compared_with("decode", "flashinfer", is_wanted=is_large_decode)),
    (f"blocks of {ALL_LAYERS} layers read at >= {LAYERS_FRACTION} of the speed of {FEW_LAYERS} layers",
     speed_of_all_layers(FEW_LAYERS, False)),
    ("and of the speed of a pool layer by layer", speed_of_all_layers(ALL_LAYERS, True)),
    (f"attention through windows >= {WINDOWS_FRACTION} of its speed by block tables",
     speed_of_windows),
    ("prefill >= 1.0 of cuDNN's speed on gathered K and V",
     compared_with("prefill", "sdpa cudnn", CUDNN_PREFILLS)),
    ("prefill with context >= 1.0 of FlashInfer's speed",
     compared_with("prefill", "flashinfer", is_wanted=has_context)),
    (f"decode step of 8B, {STEP_BATCH} sequences of {STEP_CONTEXT}, <= {STEP_OVER_FLOOR} x its floor",
     step_of_8b),
    (f"the same bits in company cost <= {COMPANY_COST:.0%} of tokens/s", cost_of_company),
    (f"tokens/s >= {OVER_TRANSFORMERS:.0f} x transformers' continuous batching", over_transformers),
    (f"blocks to the host at >= {SWAP_GB_PER_S:.0f} GB/s", swap_rate("device to host")),
    (f"blocks to the device at >= {SWAP_GB_PER_S:.0f} GB/s", swap_rate("host to device")),
)


def judge(results):
    """Returns a row for each target: target, measured, status."""
    rehearsal = results["machine"].get("rehearsal") == "yes"
    rows = []
    for kind, targets in (("correctness", CORRECTNESS), ("speed", SPEED)):
        for name, measure in targets:
            if kind == "speed" and rehearsal:
                measured, met = "a rehearsal measures no speed", None
            else:
                measured, met = measure(results)
            status = {True: "pass", False: "**fail**", None: "not measured"}[met]
            rows.append({"target": name, "measured": measured, "status": status})
    return rows
