#!/usr/bin/env python3
"""Predicts the times of attention and of a decode step from bytes, tiles and CTAs, and compares them with a run.

    tests/gpu/predict.py                          # beside the newest results of an H200
    tests/gpu/predict.py results/DATE-GPU.json
    tests/gpu/predict.py --e4m3-tile-cycles 1200  # of v2, where a profile says so

The models have few numbers, each with its meaning below. The numbers of today's kernels are fitted to the run of
2026-11-26 on an H200; the numbers of v2, the kernels with bulk copies, are what their design promises. Not modelled:
experiments with other grids and splits, mma.sync prefill, e4m3 of today, and prefill of head sizes other than 128.

Decode, today. The grid has 396 CTAs, and an item is 512 tokens of one key/value head. A wave of CTAs shares the
memory's bandwidth, but a CTA alone cannot use more than its own ceiling. Nothing covers the end of an item.
Decode, v2. Every CTA gets the same number of bytes and never drains, so time is bytes / bandwidth, or the
instructions of the tiles if these take longer, behind a fixed part.
Prefill. An item is 128 queries of one head; a tile is 128 of its keys. One CTA an SM takes items, longest first. Today
nothing covers an item's start and end. In v2 only the first start is uncovered.
Prefill's time also follows the SM clock, which a power limit varies: predictions are for the clock of the fit.
Peers are those of the same run; FlashInfer has not been measured.
Step, today: measured parts, and a remainder for the gaps between the nodes of its graph.
"""
import argparse
import heapq
import json
import math
import pathlib

import made_model

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

NUM_SMS = 132
SCHEDULERS_AN_SM = 4
CLOCK_GHZ = 1.98

# Decode, today.
DECODE_CTAS = 3 * NUM_SMS
DECODE_ITEM_TOKENS = 512
DECODE_FIXED_US = 10.0      # launches, dependent loads, first tiles, merge
DECODE_DRAIN_US = 1.0       # end of an item: requests of the next one wait for it
CTA_GB_PER_S = 28.0         # bytes in flight of one CTA / latency
DEVICE_GB_PER_S = 4300.0    # all CTAs together

# Decode, v2: fixed part, and bandwidth as a multiple of the run's copy. The second step has wgmma.
V2_DECODE_FIXED_US = 4.5
V2_DECODE_OF_COPY = (1.065, 1.10)
DECODE_TILE_TOKENS = 16     # of one key/value head; a warp's unit of work
# Instructions of a warp in the loop over stages of DecodeLines<.., 128, rows>, counted in the code that nvcc 13.0
# makes for sm_90. Each of four warps has a scheduler and a quarter of a stage's 64 tokens: at one instruction a
# cycle these are the cycles of a scheduler for a tile. A cycle without an instruction comes on top.
DECODE_TILE_INSTRUCTIONS = {("bfloat16", 16): 799, ("bfloat16", 32): 1219, ("bfloat16", 64): 2065,
                            ("float8_e4m3", 16): 868, ("float8_e4m3", 32): 1272, ("float8_e4m3", 64): 2113}
ISSUE_RATES = (0.9, 0.7)    # instructions a cycle that a profile may show

# Prefill.
PREFILL_TILE_US = 1.733     # two products of 128 x 128 x 128, and the exponentials
PREFILL_ITEM_US = 7.5       # an item's start and end, today
V2_PREFILL_ITEM_US = 1.3    # what is left of them when the next item's copies run meanwhile

# Step.
STEP_GRAPH_GAPS_MS = 0.33
# Only savings whose code exists. Products that read weights early would save 0.25 more, silu inside gate_up 0.13.
V2_STEP_SAVES_MS = {"programmatic launches": 0.20, "sampling inside the graph": 0.15,
                    "inputs built before the plan arrives": 0.05}  # measured as worker_build

DECODE_TOLERANCE = 0.075
PREFILL_TOLERANCE = 0.05
STEP_TOLERANCE = 0.01
# At 700 W an H200 lowers its clock in longer calls, which no model of one clock predicts.
STEADY_CLOCK_US = 5000.0

# us, by case of the results: what v2 has to reach.
DECODE_TARGETS = {"28/4 heads of 128, block 16, 8 x 8192": 34.5, "32/8 heads of 128, block 16, 1 x 512": 6.0,
                  "32/8 heads of 128, block 16, 1 x 8192": 9.0,
                  "32/8 heads of 128, block 16, 8 x 8192": 64.2, "32/8 heads of 128, block 16, 64 x 4096": 243.0,
                  "32/8 heads of 128, block 16, 128 x 8192": 959.0,
                  "32/8 heads of 128, block 16, e4m3, 128 x 8192": 560.0}
PREFILL_TARGETS = {"32/8 heads of 128, block 16, 1 x 8192 after 0, wgmma": 890.0,
                   "32/8 heads of 128, block 16, 1 x 2048 after 0, wgmma": 78.0,
                   "32/8 heads of 128, block 16, 16 x 512 after 0, wgmma": 92.0,
                   "28/4 heads of 128, block 16, 1 x 2048 after 8192, wgmma": 455.0,
                   "32/8 heads of 128, block 16, 1 x 8192 after 32768, wgmma": 7900.0}
STEP_TARGET_OVER_FLOOR = 1.05
DECODE_FRACTION_TARGET = 0.92


def decode_us(case):
    item_bytes = 2 * 2 * DECODE_ITEM_TOKENS * case["head_dim"]  # K and V in bf16
    items = case["batch"] * case["num_kv_heads"] * math.ceil(case["seq_len"] / DECODE_ITEM_TOKENS)
    us = DECODE_FIXED_US
    while items > 0:
        ctas = min(items, DECODE_CTAS)
        us += item_bytes / 1e3 / min(CTA_GB_PER_S, DEVICE_GB_PER_S / ctas) + DECODE_DRAIN_US
        items -= ctas
    return us


def v2_decode_us(case, copy_gb_per_s, step, tile_cycles=0.0):
    """step: 0 or 1. tile_cycles: cycles of a scheduler for a tile of K and V; 0: copies take longer."""
    tiles = case["batch"] * case["num_kv_heads"] * case["seq_len"] / DECODE_TILE_TOKENS
    instructions_us = tiles * tile_cycles / (NUM_SMS * SCHEDULERS_AN_SM * CLOCK_GHZ * 1e3)
    copies_us = case["bytes"] / 1e3 / (V2_DECODE_OF_COPY[step] * copy_gb_per_s)
    return V2_DECODE_FIXED_US + max(copies_us, instructions_us)


def v2_tile_cycles(case, copy_gb_per_s, step):
    """Returns the cycles at which a tile's instructions take as long as its bytes."""
    copies_us = v2_decode_us(case, copy_gb_per_s, step)
    one_cycle_us = v2_decode_us({**case, "bytes": 0}, copy_gb_per_s, step, 1.0)
    return (copies_us - V2_DECODE_FIXED_US) / (one_cycle_us - V2_DECODE_FIXED_US)


def tile_instructions(case):
    """Returns the instructions of a tile: of as few rows as hold the queries of a sequence and key/value head."""
    rows = case["num_heads"] // case["num_kv_heads"] * case.get("query_len", 1)
    most = next(size for size in (16, 32, 64) if rows <= size)
    return DECODE_TILE_INSTRUCTIONS[case["cache_dtype"], most]


def v2_issue_share(case, copy_gb_per_s, step):
    """Returns the share of the schedulers' cycles that instructions need while copies are the bound."""
    return tile_instructions(case) / v2_tile_cycles(case, copy_gb_per_s, step)


def prefill_items(case):
    """Returns the tiles of each item, longest first."""
    tiles = [math.ceil((case["context"] + min(end, case["chunk"])) / 128)
             for end in range(128, case["chunk"] + 128, 128)]
    return sorted(tiles * (case["num_heads"] * case["batch"]), reverse=True)


def prefill_us(case, item_us=PREFILL_ITEM_US):
    free_at = [PREFILL_ITEM_US - item_us] * NUM_SMS
    for tiles in prefill_items(case):
        heapq.heappush(free_at, heapq.heappop(free_at) + item_us + tiles * PREFILL_TILE_US)
    return max(free_at)


def us_of(results, group, case):
    (found,) = [figure for figure in results["figures"] if (figure["group"], figure["case"]) == (group, case)]
    return found["us"]


def step_parts_ms(results, attention_us):
    """Returns milliseconds of each part of an 8B step of 64 sequences. attention_us: one layer's."""
    layers = made_model.SHAPES["8b"]["num_hidden_layers"]
    products = sum(us_of(results, "gemm", f"{name}, 64 rows, fastest") for name in ("qkv", "out", "gate_up", "down"))
    norm, rope, silu = (us_of(results, "memory", f"{name}, 64 tokens")
                        for name in ("rms_norm + add", "rope + KV write", "silu * up"))
    return {"attention": layers * attention_us / 1e3,
            "products": (layers * products + us_of(results, "gemm", "lm_head, 64 rows, fastest")) / 1e3,
            "norms, rope, silu": ((2 * layers + 1) * norm + layers * (rope + silu)) / 1e3,
            "plan, embed, sampling": (us_of(results, "decode", "plan of 128 sequences") +
                                      us_of(results, "memory", "embed, 64 tokens") +
                                      us_of(results, "sampling", "64 rows, greedy")) / 1e3,
            "gaps of the graph": STEP_GRAPH_GAPS_MS}


def step_case(results):
    """The attention of one layer of the measured step."""
    shape, large = made_model.SHAPES["8b"], results["large"]
    bytes_a_token = made_model.kv_bytes_per_token(shape) / shape["num_hidden_layers"]
    return {"batch": large["batch"], "seq_len": large["context"], "head_dim": shape["head_dim"],
            "num_kv_heads": shape["num_key_value_heads"], "bytes": bytes_a_token * large["batch"] * large["context"]}


def step_ms(results):
    case = step_case(results)
    whole = {**case, "seq_len": 4096}  # mean contexts are no multiple of an item
    return sum(step_parts_ms(results, decode_us(whole) * case["seq_len"] / whole["seq_len"]).values())


def v2_step_ms(results):
    attention_us = v2_decode_us(step_case(results), copy_gb_per_s_of(results), 0)
    return sum(step_parts_ms(results, attention_us).values()) - sum(V2_STEP_SAVES_MS.values())


def step_floor_ms(results):
    config, large = made_model.config_of("8b"), results["large"]
    read = made_model.weight_bytes_of_step(config) + \
        large["batch"] * large["context"] * made_model.kv_bytes_per_token(config)
    return read / copy_gb_per_s_of(results) / 1e6


def copy_gb_per_s_of(results):
    return results["large"]["copy_gb_per_s"]


def is_modelled_decode(figure):
    return (figure["group"] == "decode" and figure.get("block_size") == 16 and figure["head_dim"] == 128 and
            figure["cache_dtype"] == "bfloat16" and figure["batch"] * figure["seq_len"] >= 65536 and
            "num_layers" not in figure and "CTAs" not in figure["case"] and "split" not in figure["case"])


def is_modelled_prefill(figure):
    return (figure["group"] == "prefill" and "wgmma" in figure["case"] and figure["head_dim"] == 128 and
            figure["us_min"] <= STEADY_CLOCK_US)


def fits(results):
    """Yields case, measured time, predicted time and the largest allowed error, for every measured case that the
    models are for. Decode: median us. Prefill: least us, because the clock varies. Step: ms."""
    for figure in results["figures"]:
        if is_modelled_decode(figure):
            yield "decode, " + figure["case"], figure["us"], decode_us(figure), DECODE_TOLERANCE
        elif is_modelled_prefill(figure):
            yield "prefill, " + figure["case"], figure["us_min"], prefill_us(figure), PREFILL_TOLERANCE
    yield "8B step of 64, ms", results["large"]["step_ms"], step_ms(results), STEP_TOLERANCE


def print_fits(results):
    print(f"{'today':66} {'measured':>9} {'model':>9} {'error':>7}")
    for case, measured, predicted, tolerance in fits(results):
        error = predicted / measured - 1
        print(f"{case:66} {measured:9.2f} {predicted:9.2f} {error:+7.1%}{'' if abs(error) <= tolerance else '  !'}")


def cudnn_us(results, group, case):
    """Returns cuDNN's time as text; empty if it was not measured."""
    found = [peer["us"] for peer in results["peers"] if "us" in peer and
             (peer["group"], peer["case"], peer["peer"]) == (group, case, "sdpa cudnn")]
    return f"{min(found):9.2f}" if found else ""


def v2_fractions(results, step):
    """Returns, for each decode case of the model, v2's share of the speed of a copy, least first."""
    copy = copy_gb_per_s_of(results)
    return sorted((figure["bytes"] / copy / 1e3 / v2_decode_us(figure, copy, step), figure["case"])
                  for figure in results["figures"] if is_modelled_decode(figure))


def print_fractions(results):
    for step, name in enumerate(("v2", "the 2nd step")):
        fractions = v2_fractions(results, step)
        good = sum(fraction >= DECODE_FRACTION_TARGET for fraction, _ in fractions)
        print(f"Decode of 64k tokens or more reaches {DECODE_FRACTION_TARGET} of a copy in {good} of {len(fractions)} "
              f"cases of {name}; least {fractions[0][0]:.3f} ({fractions[0][1]}).")


def print_issue_shares(results, cases):
    copy = copy_gb_per_s_of(results)
    for name in ("32/8 heads of 128, block 16, 128 x 8192", "32/8 heads of 128, block 16, e4m3, 128 x 8192"):
        case = cases["decode", name]
        times = ", ".join(f"{v2_decode_us(case, copy, 0, tile_instructions(case) / rate):.0f} us at {rate}"
                          for rate in ISSUE_RATES)
        print(f"{name}: copies are the bound if a scheduler issues {v2_issue_share(case, copy, 0):.2f} instructions "
              f"a cycle; {times}.")


def print_queries(results, cases):
    """Steps of several queries a sequence read the same bytes with more instructions."""
    copy = copy_gb_per_s_of(results)
    case = cases["decode", "32/8 heads of 128, block 16, 64 x 4096"]
    for dtype, bytes_of_case in (("bfloat16", case["bytes"]), ("float8_e4m3", case["bytes"] / 2)):
        of_dtype = {**case, "cache_dtype": dtype, "bytes": bytes_of_case}
        times = []
        for query_len in (1, 2, 4, 8, 16):
            instructions = tile_instructions({**of_dtype, "query_len": query_len})
            times.append(f"{query_len}: {v2_decode_us(of_dtype, copy, 0, instructions / ISSUE_RATES[0]):.0f}")
        print(f"32/8, 64 x 4096, {dtype}, us by queries at {ISSUE_RATES[0]} instructions a cycle: {', '.join(times)}.")


def print_v2(results, e4m3_tile_cycles):
    copy = copy_gb_per_s_of(results)
    cases = {(figure["group"], figure["case"]): figure for figure in results["figures"]}
    print(f"\n{'v2':66} {'now':>9} {'model':>9} {'2nd step':>9} {'target':>9} {'cuDNN':>9}")
    for name, target in DECODE_TARGETS.items():
        case = cases["decode", name]
        cycles = tile_instructions(case)
        if e4m3_tile_cycles is not None and case["cache_dtype"] == "float8_e4m3":
            cycles = e4m3_tile_cycles
        first, second = (v2_decode_us(case, copy, step, cycles) for step in (0, 1))
        print(f"{'decode, ' + name:66} {case['us']:9.2f} {first:9.2f} {second:9.2f} {target:9.2f} "
              f"{cudnn_us(results, 'decode', name)}".rstrip())
    for name, target in PREFILL_TARGETS.items():
        case = cases["prefill", name]
        predicted = prefill_us(case, V2_PREFILL_ITEM_US)
        print(f"{'prefill, ' + name:66} {case['us_min']:9.2f} {predicted:9.2f} {'':9} {target:9.2f} "
              f"{cudnn_us(results, 'prefill', name)}".rstrip())
    print(f"{'8B step of 64, ms':66} {results['large']['step_ms']:9.2f} {v2_step_ms(results):9.2f} {'':9} "
          f"{STEP_TARGET_OVER_FLOOR * step_floor_ms(results):9.2f}")
    print_fractions(results)
    print_issue_shares(results, cases)
    print_queries(results, cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=pathlib.Path, default=max(RESULTS.glob("*-h200.json")))
    parser.add_argument("--e4m3-tile-cycles", type=float,
                        help="cycles of a scheduler for 16 tokens of a head in v2; default: its instructions")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    print_fits(results)
    print_v2(results, arguments.e4m3_tile_cycles)


if __name__ == "__main__":
    main()
