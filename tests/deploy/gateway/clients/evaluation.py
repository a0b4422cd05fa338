"""lm-eval scores the model over HTTP as it scores the same weights in transformers."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from clients.served import MODEL, STORY, Served, post

NUM_ITEMS = 200
TOLERANCE = 2e-3
TASK = """
task: quire_stories
dataset_path: json
dataset_kwargs: {{data_files: {{test: {items}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
target_delimiter: ""
metric_list: [{{metric: perplexity}}, {{metric: acc}}]
"""


def make_items(server):
    """Returns sentences of sampled stories, each cut in two. Words in another order make some items unlikely."""
    body = {"model": server.model, "prompt": STORY, "n": 16, "max_tokens": 400, "seed": 3, "temperature": 1.2}
    stories = [choice["text"] for choice in json.loads(post(server.url + "/completions", body))["choices"]]
    items = []
    for sentence in " ".join(stories).replace("\n", " ").split(". "):
        words = sentence.split()
        if len(words) >= 6:
            middle = len(words) // 2 + len(items) % 2
            target = words[middle:] if len(items) % 3 else words[:middle - 1:-1]
            items.append({"context": " ".join(words[:middle]), "target": " " + " ".join(target) + "."})
    return items[:NUM_ITEMS]


def run_lm_eval(folder, name, model, arguments):
    """Returns log-likelihood and greedy flag of each item."""
    output = pathlib.Path(folder, name)
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", "quire_stories",
         "--include_path", folder, "--log_samples", "--output_path", str(output), "--batch_size", "8",
         "--device", "cpu"],
        capture_output=True, text=True, check=False, timeout=3000,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": folder, "OPENAI_API_KEY": "none",
                          "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""})
    files = list(output.rglob("samples_*.jsonl"))
    assert done.returncode == 0 and len(files) == 1, done.stderr[-3000:]
    samples = [json.loads(line) for line in files[0].read_text(encoding="utf-8").splitlines()]
    samples.sort(key=lambda sample: sample["doc_id"])
    return [(float(s["filtered_resps"][0][0]), str(s["filtered_resps"][0][1])) for s in samples]


def same_scores(report, binaries):
    # Both sides compute in float32, because bfloat16 would round them differently.
    flags = ("--device=cpu", "--cpu-isa=avx2", "--kv-cache-dtype=float32")
    with tempfile.TemporaryDirectory(prefix="quire-lm-eval-") as folder, Served(binaries, *flags) as server:
        items = make_items(server)
        report.equal("there are as many items as wanted", len(items), NUM_ITEMS)
        data = pathlib.Path(folder, "items.json")
        data.write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
        pathlib.Path(folder, "task.yaml").write_text(TASK.format(items=data), encoding="utf-8")
        served = run_lm_eval(folder, "served", "local-completions", (
            f"model={server.model},base_url={server.url}/completions,tokenizer_backend=huggingface,"
            f"tokenizer={MODEL},tokenized_requests=True,num_concurrent=4,max_retries=1,max_length=2048,"
            "add_bos_token=True"))
        # lm-eval 0.4.13 with logits_cache scores an item wrongly if another item cuts the same sentence elsewhere.
        want = run_lm_eval(folder, "reference", "hf",
                           f"pretrained={MODEL},dtype=float32,add_bos_token=True,logits_cache=False")
    report.equal("all items are scored", (len(served), len(want)), (NUM_ITEMS, NUM_ITEMS))
    for item, got, expected in zip(items, served, want):
        report.check(f"log-likelihood of {item}", abs(got[0] - expected[0]) <= TOLERANCE, (got, expected))
        report.equal(f"is {item} greedy", got[1], expected[1])
    largest = max(abs(got[0] - expected[0]) for got, expected in zip(served, want))
    greedy = sum(got[1] == "True" for got in served)
    print(f"  largest difference {largest:.1e}; log-likelihoods {min(want)[0]:.1f} to {max(want)[0]:.2f}; "
          f"{greedy} greedy")
