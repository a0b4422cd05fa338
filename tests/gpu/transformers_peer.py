#!/usr/bin/env python3
"""Tokens a second beside transformers' continuous batching: same weights, same prompts, same lengths.

Makes a model of about 1 billion random weights, which both read from the same file, and prompts of
random tokens. Both generate greedily, all requests at once, after a few unmeasured ones; theirs runs
in a process of its own (this file with --peer) once ours has given the device back. Where PyTorch or
transformers is not installed, the result says so. One JSON object goes to --json.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import made_model
import quire_programs

NOT_INSTALLED = 77
WARM_UPS = 8
# The first that works: kinds of attention that its continuous batching knows, by several versions.
ATTENTIONS = ("flash_attention_2", "sdpa", "paged|sdpa", "sdpa_paged", "eager")


# ---- The peer, in a process of its own ----------------------------------------------------------


def other_prompts(prompts):
    """Returns prompts to warm up with. They differ from the measured ones, since both programs share equal blocks."""
    return [prompt[::-1] for prompt in prompts[:WARM_UPS]]


def generate(model, prompts, num_tokens, warmup):
    from transformers.generation import GenerationConfig
    config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1,
                              pad_token_id=0)
    kept = {"persistent_manager": True, "warmup": warmup}
    try:
        results = model.generate_batch(inputs=prompts, generation_config=config,
                                       progress_bar=False, **kept)
    except TypeError:  # a version that keeps nothing between calls
        results = model.generate_batch(inputs=prompts, generation_config=config,
                                       progress_bar=False)
    counts = [len(result.generated_tokens) for result in results.values()]
    if len(counts) != len(prompts):
        raise RuntimeError(f"{len(counts)} of {len(prompts)} requests were answered")
    return sum(counts)


def measure_peer(folder, prompts, num_tokens, attention, warmup):
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation=attention).to("cuda").eval()
    generate(model, other_prompts(prompts), num_tokens, warmup)
    torch.cuda.synchronize()
    start = time.perf_counter()
    num_generated = generate(model, prompts, num_tokens, warmup)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return {"version": transformers.__version__, "attention": attention, "seconds": seconds,
            "tokens": num_generated, "tokens_per_s": num_generated / seconds}


def run_peer(task):
    """Prints a line of JSON for the first attention that works."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"not installed: {error}")
        return NOT_INSTALLED
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU")
        return NOT_INSTALLED
    failures = []
    for attention in ATTENTIONS:
        try:
            result = measure_peer(task["model"], task["prompts"], task["tokens"], attention,
                                  task["warmup"])
            print("\n" + json.dumps(result))
            return 0
        except Exception as error:  # whatever a version of it raises, the next kind is tried
            failures.append(f"{attention}: {type(error).__name__}: {error}"[:300])
            torch.cuda.empty_cache()
    print("\n".join(failures))
    return 1


# ---- Both ---------------------------------------------------------------------------------------


def start_peer(programs, folder, prompts, arguments, task_path):
    # Capturing its graphs takes about half a minute.
    task = {"model": str(folder), "prompts": prompts, "tokens": arguments.tokens,
            "warmup": programs.seconds_left() > 75}
    task_path.write_text(json.dumps(task), encoding="utf-8")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    process = subprocess.run([sys.executable, __file__, "--peer", task_path], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                             timeout=programs.seconds_left(), check=False)
    if process.returncode == NOT_INSTALLED:
        return {"note": "not measured: " + process.stdout.strip()}
    if process.returncode != 0:
        raise RuntimeError("transformers failed: " + process.stdout[-1500:])
    return {"warmed_up": task["warmup"], **json.loads(process.stdout.splitlines()[-1])}


def run(arguments):
    programs = quire_programs.Programs(arguments)
    rng = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="quire-gpu-") as name:
        folder = pathlib.Path(name) / "model"
        config = made_model.write_model(folder, arguments.shape)
        prompts = [[rng.randrange(config["vocab_size"]) for _ in range(arguments.context)]
                   for _ in range(arguments.requests)]
        flags = ("--max-num-seqs", arguments.requests, "--max-num-batched-tokens",
                 arguments.step_tokens, "--max-model-len", arguments.context + arguments.tokens)
        with programs.serve_on_device(folder, *flags) as server:
            ours = None
            for some in (other_prompts(prompts), prompts):
                ours = programs.bench_prompts(
                    server, [(prompt, arguments.tokens) for prompt in some], "--num-warmups", 0)
        result = {"device": arguments.device, "shape": arguments.shape,
                  "requests": len(prompts), "prompt_tokens": arguments.context,
                  "output_tokens": arguments.tokens, "ok": True,
                  "tokens_per_s": ours["output_throughput"]}
        result["peer"] = start_peer(programs, folder, prompts, arguments,
                                    pathlib.Path(name) / "task.json")
    if "tokens_per_s" in result["peer"]:
        result["ratio"] = result["tokens_per_s"] / result["peer"]["tokens_per_s"]
    return result


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--peer":
        return run_peer(json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    quire_programs.add_arguments(parser)
    parser.add_argument("--shape", choices=made_model.SHAPES, default="1b")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--step-tokens", type=int, default=8192)
    return quire_programs.write_result(parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
