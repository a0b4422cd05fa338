#!/usr/bin/env python3
"""Trains the tokenizer and the story model, and writes a Hugging Face directory.

    python train.py --out .. --work work

Everything is derived from make_stories.py and fixed seeds. The batch at a given
step depends only on the step number, so a run can be resumed from a checkpoint
(--resume). The resumed run may have another --steps, if the checkpoint precedes
the learning-rate decay of the shorter run.
"""

import argparse
import json
import math
import os
import time
from multiprocessing import Pool

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

import make_stories

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
VOCAB = 4096
SEED = 20240

# The split expression used by Llama 3.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.05,
    "pretraining_tp": 1,
    "tie_word_embeddings": True,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
GENERATION = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True,
              "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 512}
SPECIAL_MAP = {"bos_token": BOS, "eos_token": EOS}


def special(content):
    return {"content": content, "lstrip": False, "normalized": False,
            "rstrip": False, "single_word": False, "special": True}


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "eos_token": EOS,
    "model_max_length": 2048,
    "clean_up_tokenization_spaces": False,
    "added_tokens_decoder": {"0": special(BOS), "1": special(EOS)},
    # The model knows no turns of a dialog: a request is plain text, an empty line, and then the story.
    "chat_template": "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{{ '\\n\\n' }}{% endfor %}",
}


# Tokens per step, padding not counted.
TOKENS = 2048

# Between these steps, three of four batches are short exercises in which names return in almost every
# sentence. The exercises teach the model within minutes to look up a name in the context instead of guessing
# it. The model then looks up names in stories too.
COPYING = (750, 1000)


def train_tokenizer(path, count):
    tok = Tokenizer(models.BPE(ignore_merges=False))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, min_frequency=1, special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator((make_stories.story(i) for i in range(count)), trainer)
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=BOS + " $A", pair=BOS + " $A " + BOS + ":1 $B:1",
                                      special_tokens=[(BOS, 0)]),
    ])
    size = tok.get_vocab_size()
    if size != VOCAB:
        raise SystemExit(f"the tokenizer has {size} ids and not {VOCAB}")
    tok.save(path)
    return tok


_tok = None


def _init(path):
    global _tok
    _tok = Tokenizer.from_file(path)


def _encode(seeds):
    out = []
    for e in _tok.encode_batch([make_stories.story(i) for i in seeds]):
        out.extend(e.ids)
        out.append(1)
    return np.array(out, dtype=np.uint16)


def encode_corpus(tok_path, start, count, jobs):
    parts = [range(i, min(i + 500, start + count)) for i in range(start, start + count, 500)]
    if jobs < 2:
        _init(tok_path)
        return np.concatenate([_encode(p) for p in parts])
    with Pool(jobs, _init, (tok_path,)) as pool:
        return np.concatenate(pool.map(_encode, parts))


class Batches:
    """Batches of about 2048 tokens that depend only on the step number.

    Most batches hold whole stories of similar length, one per row, because the
    model has to learn that names and pronouns come from the same story. Every
    eighth batch is a window of 1024 or 2048 tokens with several stories in a row,
    so that long contexts keep working.
    """

    def __init__(self, data, tok_path):
        self.data = data
        self.tok = Tokenizer.from_file(tok_path)
        self.starts = np.flatnonzero(data == 0)
        self.ends = np.append(self.starts[1:], len(data))
        self.order = np.argsort(self.ends - self.starts, kind="stable")
        self.rank = np.argsort(self.order, kind="stable")

    def __call__(self, step):
        rng = np.random.default_rng((SEED, step))
        if COPYING[0] <= step < COPYING[1] and step % 4:
            seeds = rng.integers(1 << 40, 1 << 41, 40)
            rows = [np.array(e.ids + [1]) for e in
                    self.tok.encode_batch([make_stories.exercise(int(i)) for i in seeds])]
        elif step % 8 == 7:
            b, n = ((2, 1024), (1, 2048))[step // 8 % 2]
            rows = [self.data[o:o + n] for o in rng.integers(0, len(self.data) - n, b)]
        else:
            story = np.searchsorted(self.starts, rng.integers(0, len(self.data)), side="right") - 1
            n = self.ends[story] - self.starts[story]
            b = max(1, TOKENS // int(n))
            first = min(max(0, self.rank[story] - b // 2), len(self.order) - b)
            rows = [self.data[self.starts[s]:self.ends[s]] for s in self.order[first:first + b]]
        width = max(len(r) for r in rows)
        x = np.full((len(rows), width), 1, dtype=np.int64)
        y = np.full((len(rows), width), -100, dtype=np.int64)
        for k, r in enumerate(rows):
            x[k, :len(r)] = r
            y[k, :len(r) - 1] = r[1:]
        return torch.from_numpy(x), torch.from_numpy(y), sum(len(r) for r in rows)


def init_copying(model):
    """Starts every attention head as a copier.

    The value and output projections begin as the two halves of one projection. So
    a head adds the embedding of the attended token, almost unchanged, to the
    residual stream. Input and output embeddings are tied, which makes the attended
    token more likely. A head only has to learn where to attend. Without this start
    a small model needs far longer before it repeats the right names.
    """
    d = CONFIG["head_dim"]
    group = CONFIG["num_attention_heads"] // CONFIG["num_key_value_heads"]
    with torch.no_grad():
        for layer in model.model.layers:
            v, o = layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight
            p = torch.linalg.qr(torch.randn(v.shape[1], v.shape[0]))[0].T
            v.copy_(1.5 * p)
            for h in range(CONFIG["num_attention_heads"]):
                k = h // group
                o[:, h * d:(h + 1) * d] = 0.4 * p[k * d:(k + 1) * d].T


def lr_at(step, steps, peak, warmup=200, decay=0.18):
    """Returns the learning rate: a linear warm-up, then `peak`, then a cosine down to 1 % of `peak` over the last
    `decay` of the steps."""
    if step < warmup:
        return peak * (step + 1) / warmup
    first = int(steps * (1 - decay))
    if step < first:
        return peak
    x = (step - first) / max(1, steps - first)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * x)))


def dump(obj, path):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, indent=2)
        f.write("\n")


def export(model, out):
    state = {k: v.detach().to(torch.bfloat16).contiguous().clone()
             for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)
    dump(CONFIG, os.path.join(out, "config.json"))
    dump(GENERATION, os.path.join(out, "generation_config.json"))
    dump(TOKENIZER_CONFIG, os.path.join(out, "tokenizer_config.json"))
    dump(SPECIAL_MAP, os.path.join(out, "special_tokens_map.json"))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", default="..", help="directory that receives the model")
    ap.add_argument("--work", default="work", help="directory for the encoded corpus and checkpoints")
    ap.add_argument("--stories", type=int, default=70000, help="training seeds are 0 .. stories-1")
    ap.add_argument("--steps", type=int, default=1850)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--fp32", action="store_true", help="do not use bf16 autocast")
    ap.add_argument("--resume", help="checkpoint to continue from")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(SEED)
    os.makedirs(a.out, exist_ok=True)
    os.makedirs(a.work, exist_ok=True)

    tok_path = os.path.join(a.work, "tokenizer.json")
    if not os.path.exists(tok_path):
        train_tokenizer(tok_path, 20000)
    with open(tok_path, encoding="utf-8") as f, open(os.path.join(a.out, "tokenizer.json"), "w", encoding="utf-8") as g:
        g.write(f.read())
    corpus = os.path.join(a.work, f"corpus-{a.stories}.npy")
    if not os.path.exists(corpus):
        np.save(corpus, encode_corpus(tok_path, 0, a.stories, a.threads))
    data = np.load(corpus)
    batches = Batches(data, tok_path)
    print(f"corpus: {len(batches.starts)} stories, {len(data)} tokens", flush=True)

    cfg = {k: v for k, v in CONFIG.items() if k not in ("torch_dtype", "architectures", "rope_scaling")}
    model = LlamaForCausalLM(LlamaConfig(**cfg))
    init_copying(model)
    print(f"parameters: {sum(p.numel() for p in model.parameters())}", flush=True)
    decay = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}],
                            lr=a.lr, betas=(0.9, 0.98), fused=True)
    first = total = 0
    if a.resume:
        ck = torch.load(a.resume)
        model.load_state_dict(ck["model"])
        opt.load_state_dict(ck["opt"])
        first, total = ck["step"], ck["tokens"]

    model.train()
    t0, seen, avg = time.time(), 0, None
    for step in range(first, a.steps):
        lr = lr_at(step, a.steps, a.lr)
        for g in opt.param_groups:
            g["lr"] = lr
        x, y, count = batches(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=not a.fp32):
            logits = model(input_ids=x, use_cache=False).logits
        loss = F.cross_entropy(logits.float().reshape(-1, VOCAB), y.reshape(-1), ignore_index=-100)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        seen += count
        avg = loss.item() if avg is None else 0.97 * avg + 0.03 * loss.item()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{a.steps} loss {avg:.4f} lr {lr:.2e} "
                  f"{seen / (time.time() - t0):.0f} tok/s {time.time() - t0:.0f}s", flush=True)
        if (step + 1) % 250 == 0 or step + 1 == a.steps:
            path = os.path.join(a.work, "checkpoint.pt")
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step + 1, "tokens": total + seen}, path + ".tmp")
            os.replace(path + ".tmp", path)
            export(model, a.out)
    print(f"trained on {total + seen} tokens in all", flush=True)


if __name__ == "__main__":
    main()
