#!/usr/bin/env python3
"""The parts of this folder's scripts that need neither a GPU nor a server."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import company_test
import large_model_bench
import made_model
import predict
import read_ncu
import served_test
import summarize
import targets


def decode(fraction, batch=32, seq_len=8192, of="a", kernel="lines", **more):
    case = of if kernel == "splits" else f"{of}, {kernel}"
    return {"group": "decode", "case": case, "of": of, "kernel": kernel, "us": 1.0, "fraction": fraction,
            "batch": batch, "seq_len": seq_len, "query_len": 1, "head_dim": 128, "block_size": 16,
            "cache_dtype": "bfloat16", "ok": True, **more}


def prefill(us, of="p", kernel="wgmma", context=8192):
    case = of if kernel == "mma" else f"{of}, {kernel}"
    return {"group": "prefill", "case": case, "of": of, "kernel": kernel, "us": us, "context": context,
            "cache_dtype": "bfloat16", "ok": True}


def peer(group, name, of, us, **more):
    return {"group": group, "case": of, "of": of, "peer": name, "us": us, **more}


def copies(direction, rate, piece_bytes=2 << 20):
    return {"group": "copies", "case": "c", "us": 1.0, "direction": direction,
            "piece_bytes": piece_bytes, "gb_per_s": rate, "ok": True}


def results_of(figures=(), peers=(), **more):
    return {"machine": {}, "tests": [], "sanitizers": [], "figures": list(figures),
            "peers": list(peers), **more}


class TargetsTest(unittest.TestCase):

    def status(self, text, results):
        rows = [row for row in targets.judge(results) if text in row["target"]]
        self.assertEqual(len(rows), 1)
        return rows[0]["status"].strip("*")

    def test_what_nothing_is_known_of_is_not_measured(self):
        rows = targets.judge(results_of())
        self.assertEqual({row["status"] for row in rows}, {"not measured"})

    def test_the_worst_large_decode_counts(self):
        of = "copy bandwidth"
        self.assertEqual(self.status(of, results_of([decode(0.95), decode(0.92, block_size=64)])), "pass")
        self.assertEqual(self.status(of, results_of([decode(0.95), decode(0.91, block_size=64)])), "fail")

    def test_small_batches_other_kernels_and_experiments_do_not_count(self):
        others = [decode(0.1, batch=7), decode(0.1, block_size=8), decode(0.1, case="x, 44 CTAs, lines"),
                  decode(0.1, case="x, split 512, lines"), decode(0.1, cache_dtype="float8_e4m3"),
                  decode(0.1, kernel="splits"), decode(0.1, query_len=4), decode(0.1, head_dim=64)]
        self.assertEqual(self.status("copy bandwidth", results_of(others)), "not measured")
        self.assertEqual(self.status("copy bandwidth", results_of([*others, decode(0.93)])), "pass")

    def test_times_are_those_of_an_h200(self):
        case = "28/4 heads of 128, block 16, 8 x 8192"
        for us, name, status in ((34.5, "NVIDIA H200", "pass"), (34.6, "NVIDIA H200", "fail"),
                                 (20.0, "NVIDIA H100", "not measured")):
            results = results_of([decode(0.9, of=case, us=us), decode(0.9, of=case, us=99.0, kernel="splits")])
            results["machine"] = {"gpu.name": name}
            self.assertEqual(self.status(case, results), status)

    def test_the_new_kernel_must_be_faster_in_each_case(self):
        def both(lines, splits, of):
            return [decode(0.9, of=of, us=lines), decode(0.9, of=of, us=splits, kernel="splits")]
        of = "never slower"
        self.assertEqual(self.status(of, results_of(both(9.0, 10.0, "a") + both(5.0, 5.0, "b"))), "pass")
        self.assertEqual(self.status(of, results_of(both(9.0, 10.0, "a") + both(5.1, 5.0, "b"))), "fail")
        self.assertEqual(self.status(of, results_of([decode(0.9)])), "not measured")

    def test_all_layers_are_compared_with_few_and_with_each_alone(self):
        def pools(all_layers, few, layer_by_layer):
            return results_of([
                decode(0.1, batch=64, seq_len=4096, num_layers=layers, layer_major=major,
                       gb_per_s=speed)
                for layers, major, speed in ((32, 0, all_layers), (4, 0, few),
                                             (32, 1, layer_by_layer))])
        few, alone = "of 4 layers", "layer by layer"
        self.assertEqual(self.status(few, pools(3900.0, 4000.0, 4200.0)), "pass")
        self.assertEqual(self.status(alone, pools(3900.0, 4000.0, 4200.0)), "fail")
        self.assertEqual(self.status(few, pools(3000.0, 4000.0, 3000.0)), "fail")
        self.assertEqual(self.status(alone, pools(3000.0, 4000.0, 3000.0)), "pass")
        self.assertEqual(self.status("copy bandwidth", pools(1.0, 1.0, 1.0)), "not measured")
        self.assertEqual(self.status(few, results_of([decode(0.9, gb_per_s=4000.0)])),
                         "not measured")

    def test_a_peer_must_be_slower_in_all_of_its_cases(self):
        cases = targets.CUDNN_DECODES
        figures = [decode(0.9, of=case, us=10.0) for case in cases]
        of = "decode >= 1.0 of cuDNN"
        def peers(*us):
            return [peer("decode", "sdpa cudnn", case, time) for case, time in zip(cases, us)]
        self.assertEqual(self.status(of, results_of(figures, peers(10.0, 11.0, 12.0, 13.0))), "pass")
        self.assertEqual(self.status(of, results_of(figures, peers(9.9, 11.0, 12.0, 13.0))), "fail")
        self.assertEqual(self.status(of, results_of(figures, peers(10.0, 11.0))), "not measured")
        self.assertEqual(self.status("decode >= 1.0 of FlashInfer", results_of(figures, peers(1, 1, 1, 1))),
                         "not measured")

    def test_a_peer_that_is_wrong_does_not_count(self):
        figures = [decode(0.9, us=10.0)]
        of = "decode >= 1.0 of FlashInfer"
        for error, status in ((1e-3, "fail"), (0.5, "not measured")):
            peers = [peer("decode", "flashinfer", "a", 9.0, error=error)]
            self.assertEqual(self.status(of, results_of(figures, peers)), status)

    def test_the_workers_kernel_of_prefill_is_compared(self):
        of = "prefill with context"
        peers = [peer("prefill", "flashinfer sm90", case, 10.0) for case in ("p", "q")]
        figures = [prefill(9.0), prefill(50.0, kernel="mma"), prefill(99.0, of="q", context=0)]
        self.assertEqual(self.status(of, results_of(figures, peers)), "pass")
        self.assertEqual(self.status(of, results_of([prefill(10.5)], peers)), "fail")
        self.assertEqual(self.status(of, results_of([prefill(10.5), prefill(8.0, kernel="persistent")], peers)),
                         "pass")

    def test_peers_measured_in_turn_leave_the_figures(self):
        own = [decode(0.9, us=10.0), decode(0.9, us=12.0, kernel="splits"), decode(0.9, us=1.0, of="b")]
        theirs = {"group": "decode", "case": "a, flashinfer", "of": "a", "peer": "flashinfer", "us": 5.0}
        (found,) = summarize.peers_among([*own, theirs])
        self.assertEqual((found["our_us"], found["ratio"]), (10.0, 0.5))

    def test_the_step_may_take_105_percent_of_its_floor(self):
        large = {"step_ms": 13.0, "context": 4200.0, "floor_ms": 11.7, "batch": 64}
        for ratio, status in ((1.05, "pass"), (1.06, "fail")):
            self.assertEqual(self.status("of 8B", results_of(
                large={**large, "step_over_floor": ratio})), status)
        for other in ({"context": 1100.0}, {"batch": 8}):
            self.assertEqual(self.status("of 8B", results_of(
                large={**large, "step_over_floor": 1.0, **other})), "not measured")
        self.assertEqual(self.status("of 8B", results_of(large={"note": "no memory"})),
                         "not measured")

    def test_blocks_are_copied_at_45_gb_per_s_each_way(self):
        slow_to_device = [copies("device to host", 50), copies("host to device", 44),
                          copies("host to device", 60, piece_bytes=32 << 10)]
        self.assertEqual(self.status("blocks to the host", results_of(slow_to_device)), "pass")
        self.assertEqual(self.status("blocks to the device", results_of(slow_to_device)), "fail")

    def test_transformers_must_be_five_times_slower(self):
        both = {"tokens_per_s": 50.0, "peer": {"tokens_per_s": 10.0}}
        for ratio, status in ((5.0, "pass"), (4.9, "fail")):
            self.assertEqual(self.status("transformers", results_of(
                transformers={**both, "ratio": ratio})), status)
        rows = targets.judge(results_of(transformers={"peer": {"note": "not installed: torch"}}))
        self.assertIn("not installed: torch", [row["measured"] for row in rows])

    def test_one_answer_needs_ten_thousand_requests(self):
        def company(requests, different, reused=0):
            return results_of(company={"requests": requests, "different_answers": different,
                                       "different_answers_with_reuse": reused,
                                       "throughput_cost": 0.1})
        of = "one answer"
        self.assertEqual(self.status(of, company(10000, 0)), "pass")
        self.assertEqual(self.status(of, company(10000, 1)), "fail")
        self.assertEqual(self.status(of, company(10000, 0, 1)), "fail")
        self.assertEqual(self.status(of, company(9999, 0)), "not measured")
        self.assertEqual(self.status(of, company(10, 1)), "fail")

    def test_company_may_cost_five_percent(self):
        for cost, status in ((0.05, "pass"), (0.06, "fail")):
            self.assertEqual(self.status("in company cost", results_of(company={"throughput_cost": cost})), status)

    def test_tests_sanitizers_and_bits_must_be_clean(self):
        for failures, rc, ok, status in ((0, 0, True, "pass"), (1, 86, False, "fail")):
            results = results_of([decode(0.9, ok=ok)])
            results["tests"] = [{"program": "a", "tests": 3, "failures": failures}]
            results["sanitizers"] = [{"tool": "memcheck", "program": "a", "rc": rc}]
            for of in ("all tests", "compute-sanitizer", "gpu_bench"):
                self.assertEqual(self.status(of, results), status)
        unfinished = results_of()
        unfinished["tests"] = [{"program": "a", "note": "did not finish"}]
        self.assertEqual(self.status("all tests", unfinished), "fail")
        self.assertIn("0 of 0 tests failed; no result of a",
                      [row["measured"] for row in targets.judge(unfinished)])

    def test_only_what_a_sanitizer_reports_is_a_finding(self):
        def run(rc, **more):
            return {"tool": "memcheck", "program": f"p{rc}", "rc": rc, **more}
        def judged(*runs):
            results = results_of()
            results["sanitizers"] = list(runs)
            (row,) = [row for row in targets.judge(results)
                      if row["target"].startswith("compute-sanitizer")]
            return row["measured"], row["status"].strip("*")

        self.assertEqual(judged(run(0), run(86)),
                         ("1 of 2 runs found something: memcheck p86", "fail"))
        self.assertEqual(judged(run(0), run(124), run(137)),
                         ("0 of 1 runs found something; not finished: memcheck p124, memcheck p137",
                          "not measured"))
        self.assertEqual(judged(run(0), run(86), run(124))[1], "fail")
        # A test that fails or crashes under the tool is no finding, but its run is not clean.
        self.assertEqual(judged(run(0), run(1), run(139)),
                         ("0 of 3 runs found something; failed: memcheck p1 (exit 1), "
                          "memcheck p139 (exit 139)", "fail"))
        # A refusal counts as one with any exit code of the program.
        refused = [run(rc, refused=True) for rc in (0, 1, 86)]
        self.assertEqual(judged(*refused), ("it does not support this device", "not measured"))
        self.assertEqual(judged(run(0), *refused)[1], "not measured")

    def test_a_served_model_is_judged_by_its_comparisons(self):
        good = {"ok": True, "cases": [{"ok": True}], "largest_logprob_error": 0.1}
        served = {"against_cpu": good, "fp8_cache_against_cpu": {**good, "ok": False},
                  "same_bits_without_graphs": False, "two_ranks_against_one": {**good, "ok": False},
                  "through_windows": {"bits": False}}
        results = results_of(served=served)
        self.assertEqual(self.status("are the CPU's", results), "pass")
        self.assertEqual(self.status("fp8", results), "fail")
        self.assertEqual(self.status("graphs", results), "fail")
        self.assertEqual(self.status("two ranks", results), "fail")
        self.assertEqual(self.status("through windows have", results), "fail")
        served["through_windows"] = {"bits": True}
        self.assertEqual(self.status("through windows have", results_of(served=served)), "pass")
        served["two_ranks_against_one"] = good
        self.assertEqual(self.status("two ranks", results_of(served=served)), "pass")

    def test_windows_may_be_hardly_slower_than_block_tables(self):
        def figures(by_tables, by_windows):
            return [{"group": "windows", "case": "decode, block tables", "us": by_tables,
                     "windows": 0, "ok": True},
                    {"group": "windows", "case": "decode, windows", "us": by_windows,
                     "windows": 1, "ok": True},
                    {"group": "windows", "case": "map, a block, on the host", "us": 30, "ok": True}]

        for by_windows, status in ((100.0, "pass"), (102.0, "pass"), (104.0, "fail")):
            self.assertEqual(self.status("attention through windows",
                                         results_of(figures(100.0, by_windows))), status)
        self.assertEqual(self.status("attention through windows",
                                     results_of(figures(100.0, 100.0)[2:])), "not measured")

    def test_a_rehearsal_passes_no_speed(self):
        results = results_of([decode(0.99), prefill(400)])
        results["machine"] = {"rehearsal": "yes"}
        self.assertEqual(self.status("copy bandwidth", results), "not measured")


class ReadNcuTest(unittest.TestCase):

    def test_each_kernel_has_its_counters_with_units(self):
        text = ('==PROF== Connected\n"ID","Kernel Name","gpu__time_duration.sum","lts__t_sector_hit_rate.pct"\n'
                '"","","us","%"\n"0","DecodeLines(LineParams)","34.5","2.5"\n1 figures, 0 wrong\n'
                '"1","MergeSplits(DecodeParams)","2.7",""\n')
        self.assertEqual(list(read_ncu.read_kernels(text)),
                         [("DecodeLines", {"time": "34.5 us", "L2 hit rate": "2.5 %"}),
                          ("MergeSplits", {"time": "2.7 us"})])

    def test_a_run_without_kernels_has_none(self):
        self.assertEqual(list(read_ncu.read_kernels("==ERROR== no permission\n")), [])


def reading(steps, sequences, tokens, prompt_tokens, generated, seconds):
    one = object.__new__(large_model_bench.Reading)
    one.steps, one.sequences, one.tokens = steps, sequences, tokens
    one.prompt_tokens, one.generated = prompt_tokens, generated
    one.seconds = dict.fromkeys(large_model_bench.PARTS, seconds)
    return one


class LargeModelTest(unittest.TestCase):

    def test_only_steps_of_all_sequences_without_a_prompt_count(self):
        readings = [reading(0, 0, 0, 0, 0, 0.0),
                    reading(10, 20, 500, 480, 20, 9.0),    # prompts
                    reading(20, 60, 540, 480, 60, 9.2),    # 10 steps of 4
                    reading(25, 75, 555, 480, 75, 9.9),    # of 3
                    reading(25, 75, 555, 480, 75, 9.9),    # none
                    reading(30, 95, 575, 480, 95, 10.0)]   # 5 of 4
        intervals = large_model_bench.decode_intervals(readings, 4)

        self.assertEqual([interval["steps"] for interval in intervals], [10, 5])
        self.assertAlmostEqual(intervals[0]["worker_forward"], 1e3 * 0.2 / 10)
        self.assertAlmostEqual(intervals[1]["context"], (480 + 85) / 4)

    def test_the_median_step_counts_and_not_the_one_that_records_a_graph(self):
        def interval(part_ms, context):
            return {"steps": 4, "context": context,
                    **dict.fromkeys(large_model_bench.PARTS, part_ms)}
        result = large_model_bench.summary([interval(50.0, 4100), interval(4.0, 4110),
                                            interval(3.9, 4120)])

        self.assertEqual((result["steps"], result["intervals"], result["context"]), (12, 3, 4110))
        self.assertAlmostEqual(result["step_ms"], 12.0)  # the round trip contains the other parts
        self.assertAlmostEqual(result["step_ms_max"], 150.0)

    def test_no_such_step_is_an_error(self):
        with self.assertRaises(RuntimeError):
            large_model_bench.decode_intervals([reading(0, 0, 0, 0, 0, 0.0)], 4)

    def test_the_floor_is_weights_and_context_read_once(self):
        config = made_model.config_of("8b")
        self.assertAlmostEqual(made_model.weight_bytes_of_step(config) / 1e9, 15.01, places=2)
        self.assertEqual(made_model.kv_bytes_per_token(config), 128 << 10)
        self.assertAlmostEqual(large_model_bench.floor_ms(config, 64, 4096, 4300.0), 11.48, places=2)

    def test_a_table_that_is_also_the_outputs_is_read(self):
        config = {**made_model.config_of("8b"), "tie_word_embeddings": True}

        self.assertEqual(made_model.weight_bytes_of_step(config),
                         made_model.weight_bytes_of_step(made_model.config_of("8b")))


class PredictTest(unittest.TestCase):

    results = json.loads((HERE / "results" / "2026-11-26-h200.json").read_text())

    def test_every_measured_case_is_predicted(self):
        fits = list(predict.fits(self.results))
        self.assertEqual([sum(case.startswith(kind) for case, *_ in fits)
                          for kind in ("decode", "prefill", "8B step")], [37, 16, 1])
        for case, measured, predicted, tolerance in fits:
            with self.subTest(case):
                self.assertLessEqual(abs(predicted / measured - 1), tolerance)

    def test_most_decodes_are_predicted_more_closely(self):
        errors = [abs(predicted / measured - 1) for case, measured, predicted, _ in predict.fits(self.results)
                  if case.startswith("decode")]
        self.assertGreater(sum(error <= 0.045 for error in errors), 0.9 * len(errors))

    def test_a_lone_wave_of_few_items_waits_for_one_item(self):
        case = {"batch": 1, "num_kv_heads": 8, "seq_len": 8192, "head_dim": 128}
        self.assertAlmostEqual(predict.decode_us(case), 10.0 + 262144 / 28e3 + 1.0)

    def test_instructions_are_the_bound_where_they_take_longer_than_copies(self):
        case = {"batch": 128, "num_kv_heads": 8, "seq_len": 8192, "bytes": 2.15e9}
        cycles = predict.v2_tile_cycles(case, 4230.0, 0)
        copies = predict.v2_decode_us(case, 4230.0, 0)
        self.assertAlmostEqual(copies, 4.5 + 2.15e9 / 1.065 / 4230e3)
        self.assertAlmostEqual(predict.v2_decode_us(case, 4230.0, 0, 0.99 * cycles), copies)
        self.assertAlmostEqual(predict.v2_decode_us(case, 4230.0, 0, 2 * cycles) - 4.5, 2 * (copies - 4.5))

    def test_equal_items_are_served_in_rounds(self):
        case = {"chunk": 2048, "context": 8192, "num_heads": 28, "batch": 1}  # 448 items on 132 SMs
        items = predict.prefill_items(case)
        self.assertEqual((len(items), items[0], items[-1]), (448, 80, 65))
        self.assertGreater(predict.prefill_us(case), 4 * (7.5 + 65 * 1.733))
        self.assertEqual(predict.prefill_us({**case, "chunk": 128, "num_heads": 132}), 7.5 + 65 * 1.733)

    def test_the_step_of_v2_counts_what_is_written_alone(self):
        target = predict.STEP_TARGET_OVER_FLOOR * predict.step_floor_ms(self.results)
        self.assertAlmostEqual(target, 12.55, places=2)
        self.assertAlmostEqual(predict.v2_step_ms(self.results), 12.56, places=2)

    def test_v2_reaches_its_share_of_a_copy_in_each_case(self):
        fractions = predict.v2_fractions(self.results, 0)
        self.assertEqual(len(fractions), 37)
        self.assertEqual(fractions[0][1], "28/4 heads of 128, block 16, 8 x 8192")
        self.assertGreaterEqual(fractions[0][0], predict.DECODE_FRACTION_TARGET)

    def test_more_queries_need_more_instructions(self):
        case = {"num_heads": 32, "num_kv_heads": 8, "cache_dtype": "bfloat16"}
        counts = [predict.tile_instructions({**case, "query_len": queries}) for queries in (1, 4, 5, 16)]
        self.assertEqual(counts, [799, 799, 1219, 2065])

    def test_issue_slots_nearly_bound_e4m3_and_not_bf16(self):
        case = {"batch": 128, "num_heads": 32, "num_kv_heads": 8, "seq_len": 8192, "bytes": 4.3e9,
                "cache_dtype": "bfloat16"}
        e4m3 = {**case, "bytes": 2.15e9, "cache_dtype": "float8_e4m3"}
        self.assertAlmostEqual(predict.v2_issue_share(case, 4230.0, 0), 0.42, places=2)
        self.assertAlmostEqual(predict.v2_issue_share(e4m3, 4230.0, 0), 0.91, places=2)

    def test_the_program_prints_both_tables(self):
        run = subprocess.run([HERE / "predict.py", "--e4m3-tile-cycles", "1290"], check=True, text=True,
                             stdout=subprocess.PIPE)
        self.assertNotIn("!", run.stdout)  # marks an error past the tolerance
        (e4m3,) = [line for line in run.stdout.splitlines() if line.startswith("decode") and "e4m3" in line]
        self.assertEqual(e4m3.split()[-3:], ["651.43", "651.43", "560.00"])


class MadeModelTest(unittest.TestCase):

    def test_the_file_is_safetensors_of_every_weight_and_the_seeds(self):
        def write(seed):
            with tempfile.TemporaryDirectory() as name:
                made_model.write_model(pathlib.Path(name), "tiny", seed)
                return (pathlib.Path(name) / "model.safetensors").read_bytes()
        data = write(1)
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        del header["__metadata__"]
        config = made_model.config_of("tiny")
        self.assertEqual({name: tuple(tensor["shape"]) for name, tensor in header.items()},
                         dict(made_model.tensors_of(config)))
        ends = [tensor["data_offsets"] for tensor in header.values()]
        self.assertEqual([begin for begin, _ in ends], [0] + [end for _, end in ends[:-1]])
        self.assertEqual(8 + length + ends[-1][1], len(data))

        begin, end = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
        words = struct.unpack(f"<{(end - begin) // 2}H", data[8 + length + begin:8 + length + end])
        self.assertEqual({word >> 7 & 0xFF for word in words}, {121})
        self.assertGreater(len(set(words)), 200)
        begin, _ = header["model.norm.weight"]["data_offsets"]
        self.assertEqual(struct.unpack("<H", data[8 + length + begin:][:2]), (0x3F80,))
        self.assertEqual(data, write(1))
        self.assertNotEqual(data, write(2))


class AnswersTest(unittest.TestCase):

    def test_every_answer_is_compared_with_its_own_prompts(self):
        alone = [[1, 2], [3]]
        self.assertEqual(company_test.count_differences([[3], [1, 2], [3]], [1, 0, 1], alone), 0)
        self.assertEqual(company_test.count_differences([[3], [1], [4]], [1, 0, 1], alone), 2)

    def test_bits_are_tokens_and_log_probabilities(self):
        def answer(token, logprob):
            return [[{"token_id": token, "logprob": logprob}]]
        self.assertEqual(served_test.bits(answer(1, -0.5)), served_test.bits(answer(1, -0.5)))
        self.assertNotEqual(served_test.bits(answer(1, -0.5)), served_test.bits(answer(2, -0.5)))
        self.assertNotEqual(served_test.bits(answer(1, -0.5)), served_test.bits(answer(1, -0.25)))


# torch and transformers, with just the parts that run_peer calls. The first kind of attention fails.
STUB_TORCH = """
bfloat16 = None
class cuda:
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: None)
    empty_cache = staticmethod(lambda: None)
"""
STUB_TRANSFORMERS = """
__version__ = "5"
class Result:
    generated_tokens = [1, 2, 3]
class Model:
    to = lambda self, device: self
    eval = lambda self: self
    def generate_batch(self, inputs, generation_config, progress_bar, **kept):
        assert generation_config.arguments["do_sample"] is False
        return {i: Result() for i in range(len(inputs) - LOST)}
class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(folder, dtype, attn_implementation):
        if attn_implementation == "flash_attention_2":
            raise ImportError("no flash_attn")
        return Model()
"""
STUB_GENERATION = """
class GenerationConfig:
    def __init__(self, **arguments):
        self.arguments = arguments
"""


class TransformersPeerTest(unittest.TestCase):

    def run_peer(self, lost=0, stubs=True):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            if stubs:
                (folder / "transformers").mkdir()
                (folder / "torch.py").write_text(STUB_TORCH)
                (folder / "transformers/__init__.py").write_text(
                    f"LOST = {lost}\n" + STUB_TRANSFORMERS)
                (folder / "transformers/generation.py").write_text(STUB_GENERATION)
            else:
                (folder / "torch.py").write_text("raise ImportError('none here')")
            task = folder / "task.json"
            task.write_text(json.dumps({"model": "m", "prompts": [[1]] * 20, "tokens": 3,
                                        "warmup": True}))
            return subprocess.run([sys.executable, HERE / "transformers_peer.py", "--peer", task],
                                  env={**os.environ, "PYTHONPATH": name}, text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_the_first_attention_that_works_is_measured(self):
        process = self.run_peer()
        self.assertEqual(process.returncode, 0, process.stdout)
        result = json.loads(process.stdout.splitlines()[-1])
        self.assertEqual((result["attention"], result["tokens"]), ("sdpa", 60))
        self.assertGreater(result["tokens_per_s"], 0)

    def test_lost_requests_are_a_failure(self):
        process = self.run_peer(lost=1)
        self.assertEqual(process.returncode, 1)
        self.assertIn("sdpa: RuntimeError: 7 of 8 requests were answered", process.stdout)

    def test_what_is_not_installed_is_said(self):
        process = self.run_peer(stubs=False)
        self.assertEqual(process.returncode, 77)
        self.assertIn("not installed: none here", process.stdout)


if __name__ == "__main__":
    unittest.main()
