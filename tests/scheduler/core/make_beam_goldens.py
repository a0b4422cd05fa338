#!/usr/bin/env python3
"""Write what Hugging Face transformers finds by beam search with the tiny models of
tests/worker/model/testdata. Needs torch, transformers and safetensors; the test needs the file only.

    make_beam_goldens.py [--seed N]

Writes testdata/beam_golden.json: a case is a prompt, the parameters of generate(), and the output
tokens and scores of the sequences it returned, best first, all computed in float32.

An untrained model has no end of text. The stop tokens of a case are taken from what a search
without stop tokens found, so that they come up among the best beams and in different depths.

transformers leaves equal scores to torch.topk, and another implementation's rounding can turn
nearly equal ones round. So every comparison that a search makes is watched: a case in which two
scores came closer than MIN_MARGIN is dropped, and another one drawn.
"""
import argparse
import json
import os
import random
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers.generation import GenerationMode

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "..", "worker", "model", "testdata")
OUT = os.path.join(HERE, "testdata", "beam_golden.json")

FAMILIES = ("llama", "mistral", "opt", "qwen2", "qwen3")  # float32, one file each
NUM_CASES = 270
MIN_MARGIN = 2e-4  # rounding moves the sum of 24 logprobs by some 1e-5
MASKED = -1e8      # transformers marks what must not be chosen by -1e9

# One beam is searched as several are, not decoded greedily.
transformers.GenerationConfig.get_generation_mode = lambda *_: GenerationMode.BEAM_SEARCH


def load_model(name):
    path = os.path.join(MODELS, name)
    config = transformers.AutoConfig.from_pretrained(path)
    model = getattr(transformers, config.architectures[0])(config).float().eval()
    missing, unexpected = model.load_state_dict(
        load_file(os.path.join(path, "model.safetensors")), strict=False)
    allowed = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - allowed or unexpected:
        sys.exit("%s: tensors missing %s, unexpected %s" % (path, missing, unexpected))
    model.tie_weights()
    # The parameters of a case alone count, not the defaults of the model.
    model.generation_config = transformers.GenerationConfig(bos_token_id=0)
    return model


class MarginWatch:
    """While entered: the smallest difference of two scores that were compared.

    A negative length penalty multiplies the scores of hypotheses, and their rounding with them;
    their differences are divided by the largest such factor.
    """

    def __init__(self, model):
        self.model = model
        self.margin = float("inf")
        self.factor = 1.0

    def __enter__(self):
        self.topk = torch.topk
        self.check = self.model._check_early_stop_heuristic
        self.update = self.model._update_finished_beams
        torch.topk = self.watched_topk
        self.model._check_early_stop_heuristic = self.watched_check
        self.model._update_finished_beams = self.watched_update
        return self

    def __exit__(self, *_):
        torch.topk = self.topk
        del self.model._check_early_stop_heuristic
        del self.model._update_finished_beams

    def note(self, difference):
        self.margin = min(self.margin, float(difference) / self.factor)

    def watched_topk(self, values, k, **options):
        chosen = self.topk(values, k=min(k + 1, values.shape[-1])).values.flatten()
        chosen = chosen[chosen > MASKED]
        if len(chosen) > 1:
            self.note((chosen[:-1] - chosen[1:]).min())
        return self.topk(values, k=k, **options)

    def watched_update(self, **args):
        length = args["cur_len"] + 1 - args["decoder_prompt_len"]
        self.factor = max(1.0, length ** -args["length_penalty"])
        updated = self.update(**args)
        self.factor = 1.0
        return updated

    def watched_check(self, **args):
        length = args["cur_len"] - args["decoder_prompt_len"]
        self.factor = max(1.0, length ** -args["length_penalty"])
        if args["early_stopping"] == "never" and args["length_penalty"] > 0:
            length = args["max_length"] - args["decoder_prompt_len"]
        best = args["running_beam_scores"][:, 0] / length ** args["length_penalty"]
        worst = args["beam_scores"].min()
        if worst > MASKED and best > MASKED:
            self.note((best - worst).abs())
        self.factor = 1.0
        return self.check(**args)


def search(model, case, stop_token_ids):
    """Returns output tokens and scores, and the smallest margin."""
    prompt = torch.tensor([case["prompt"]])
    early_stopping = {"false": False, "true": True}.get(case["early_stopping"], "never")
    with MarginWatch(model) as watch:
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
            num_beams=case["num_beams"], num_return_sequences=case["n"],
            length_penalty=case["length_penalty"], early_stopping=early_stopping,
            max_new_tokens=case["max_tokens"], min_new_tokens=case["min_tokens"] or None,
            eos_token_id=stop_token_ids or None, return_dict_in_generate=True, output_scores=True)
    sequences = []
    for row in out.sequences[:, prompt.shape[1]:].tolist():
        ends = [i + 1 for i, token in enumerate(row) if token in stop_token_ids]
        sequences.append(row[:min(ends, default=case["max_tokens"])])
    return sequences, out.sequences_scores.tolist(), watch.margin


def draw_case(rng, name, vocab_size):
    num_beams = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 10))
    max_tokens = rng.choice((1, 2, 4, 8, 12, 16, 24))
    return {"model": name,
            "prompt": [rng.randrange(3, vocab_size) for _ in range(rng.randint(1, 20))],
            "num_beams": num_beams,
            "n": rng.choice((1, num_beams, rng.randint(1, num_beams))),
            "length_penalty": rng.choice((-1.0, -0.5, 0.0, 0.6, 1.0, 1.0, 2.0)),
            "early_stopping": rng.choice(("false", "true", "never")),
            "max_tokens": max_tokens,
            "min_tokens": rng.choice((0, 0, 0, rng.randint(0, max_tokens)))}


def draw_hopeful_case(rng, name, vocab_size):
    """Returns a case in which "never" may find more than False does. In most cases it does not."""
    num_beams = rng.choice((2, 3, 4))
    return {**draw_case(rng, name, vocab_size), "num_beams": num_beams, "n": num_beams,
            "length_penalty": rng.choice((1.0, 2.0)), "early_stopping": "never",
            "max_tokens": 16, "min_tokens": 0}


def stop_tokens_for(rng, model, case):
    sequences, _, _ = search(model, {**case, "n": case["num_beams"]}, [])
    return sorted({rng.choice(rng.choice(sequences)) for _ in range(rng.randint(0, 3))})


def summary(cases, num_dropped):
    """Returns a text with counts of the cases' paths through a search."""
    ends = [(case, tokens) for case in cases for tokens in case["sequences"]]
    stopped = sum(tokens[-1] in case["stop_token_ids"] for case, tokens in ends)
    short = sum(max(map(len, case["sequences"])) < case["max_tokens"] for case in cases)
    return ("%d cases, %d dropped for margins below %g; %d sequences, %d of them ended by a stop "
            "token; in %d cases all of them before max_tokens" %
            (len(cases), num_dropped, MIN_MARGIN, len(ends), stopped, short))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    rng = random.Random(parser.parse_args().seed)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()

    models = {name: load_model(name) for name in FAMILIES}
    cases, num_dropped = [], 0
    with torch.no_grad():
        while len(cases) < NUM_CASES:
            name = FAMILIES[len(cases) % len(FAMILIES)]
            is_hopeful = len(cases) % 9 == 0
            draw = draw_hopeful_case if is_hopeful else draw_case
            case = draw(rng, name, models[name].config.vocab_size)
            case["stop_token_ids"] = stop_tokens_for(rng, models[name], case)
            sequences, scores, margin = search(models[name], case, case["stop_token_ids"])
            if margin < MIN_MARGIN:
                num_dropped += 1
                continue
            if is_hopeful and sequences == search(models[name], {**case, "early_stopping": "false"},
                                                  case["stop_token_ids"])[0]:
                continue
            case["sequences"] = sequences
            case["scores"] = [round(score, 6) for score in scores]
            cases.append(case)

    about = summary(cases, num_dropped)
    with open(OUT, "w") as f:
        f.write('{"source": "transformers %s, torch %s, float32",\n "about": "%s",\n "cases": [\n' %
                (transformers.__version__, torch.__version__.split("+")[0], about))
        f.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases))
        f.write("\n]}\n")
    print(about)


if __name__ == "__main__":
    main()
