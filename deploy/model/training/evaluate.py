#!/usr/bin/env python3
"""Checks an exported model directory, from its files alone.

    python evaluate.py --model .. --train-stories 70000

Prints the sizes, the perplexity on held-out stories, whether any held-out story
is also a training story, a tokenizer round trip, how consistent sampled stories
are, and some sample texts.
"""

import argparse
import math
import os
import random
import re

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

import make_stories

HELD_OUT = 10_000_000  # first held-out seed; training uses seeds from 0 upward


def perplexity(model, tok, stories):
    nll = n = 0
    with torch.no_grad():
        for text in stories:
            ids = torch.tensor([tok(text)["input_ids"] + [tok.eos_token_id]])
            logits = model(ids).logits[0, :-1].float()
            nll += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            n += ids.shape[1] - 1
    return math.exp(nll / n), n


def random_text(r):
    ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x3040, 0x30FF),
              (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0x0, 0x10FFFF)]
    out = []
    for _ in range(r.randint(1, 60)):
        a, b = r.choice(ranges)
        c = r.randint(a, b)
        out.append(" " if 0xD800 <= c <= 0xDFFF else chr(c))
    return "".join(out)


def check_story(text):
    """Returns the problems of one story: too many names, a name of the wrong gender, pronouns that do not fit."""
    girls, boys = set(make_stories.GIRL_NAMES), set(make_stories.BOY_NAMES)
    words = re.findall(r"[A-Z][a-z]+", text)
    names = {w for w in words if w in girls or w in boys}
    problems = []
    if len(names) > 2:
        problems.append("names")
    own = re.findall(r"(?:girl|boy) named (\w+)", text[:300])
    kind = re.findall(r"(girl|boy) named", text[:300])
    if kind and own and own[0] in names and (own[0] in girls) != (kind[0] == "girl"):
        problems.append("gender")
    if names and names <= girls and re.search(r"\b(he|his|him)\b", re.sub(r'"[^"]*"', "", text)) \
            and not re.search(r"(father|troll|snowman|tortoise|farmer)", text):
        problems.append("pronoun")
    if names and names <= boys and re.search(r"\b(she|her)\b", re.sub(r'"[^"]*"', "", text)) \
            and not re.search(r"(mother|woman|fairy|wife|teacher|mouse)", text):
        problems.append("pronoun")
    return problems


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", default="..")
    ap.add_argument("--train-stories", type=int, default=70000)
    ap.add_argument("--held-out", type=int, default=500)
    ap.add_argument("--samples", type=int, default=100, help="sampled stories for the consistency count")
    ap.add_argument("--show", type=int, default=4)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)

    for name in sorted(os.listdir(a.model)):
        path = os.path.join(a.model, name)
        if os.path.isfile(path):
            print(f"{os.path.getsize(path):>10}  {name}")
    tok = AutoTokenizer.from_pretrained(a.model)
    bf16 = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16).eval()
    fp32 = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).eval()
    print("parameters:", sum(p.numel() for p in fp32.parameters()), " ids:", len(tok),
          " vocab_size:", fp32.config.vocab_size)
    assert len(tok) == fp32.config.vocab_size

    r = random.Random(1)
    texts = [random_text(r) for _ in range(1000)]
    ok = sum(tok.decode(tok(t)["input_ids"], skip_special_tokens=True) == t for t in texts)
    print(f"tokenizer round trip: {ok} of {len(texts)}")

    held = [make_stories.story(HELD_OUT + i) for i in range(a.held_out)]
    train = {make_stories.story(i) for i in range(a.train_stories)}
    print(f"held-out stories that are also training stories: {sum(h in train for h in held)} of {len(held)}")
    for label, m in (("fp32 arithmetic", fp32), ("bf16 arithmetic", bf16)):
        ppl, n = perplexity(m, tok, held)
        print(f"held-out perplexity, {label}: {ppl:.4f} on {n} tokens of {len(held)} stories")

    def write(prompt, n=1, **kw):
        ids = tok([prompt], return_tensors="pt")
        out = fp32.generate(**ids, max_new_tokens=1000, num_return_sequences=n,
                            pad_token_id=tok.eos_token_id, **kw)
        ended = sum((row[1:] == tok.eos_token_id).any().item() for row in out)
        return tok.batch_decode(out, skip_special_tokens=True), ended

    torch.manual_seed(0)
    bad, ended, seen = {}, 0, set()
    if a.samples:
        texts, ended = write("Once upon a time", n=a.samples, do_sample=True, temperature=0.8, top_p=0.95)
        seen = set(texts)
    for text in seen:
        for p in set(check_story(text)):
            bad[p] = bad.get(p, 0) + 1
    if a.samples:
        print(f"sampled stories: {a.samples}, different: {len(seen)}, ended with eos: {ended}, "
              f"in the training set: {sum(t in train for t in seen)}, problems: {bad}")

    print("\n--- greedy: Once upon a time\n" + write("Once upon a time", do_sample=False)[0][0])
    prompts = ["Once upon a time", "One day,", "In a small village", "Tell me a story about a fox named Sally.\n\n"]
    for k in range(a.show):
        print(f"\n--- temperature 0.8: {prompts[k % 4]!r}\n"
              + write(prompts[k % 4], do_sample=True, temperature=0.8, top_p=0.95)[0][0])


if __name__ == "__main__":
    main()
