"""Writes sampling.txt: distributions from which the sampler must draw.

Hugging Face's logits processors do the work where there is one (repetition penalty, temperature,
min-p, top-k, top-p, in the order of kernels/api/sampling.h); logit bias, bans, frequency and
presence penalties are one line of torch each.

    python make_sampling_golden.py > sampling.txt

Made with torch 2 and transformers 4 or 5. Format, one case in 9 lines: name; temperature top_k top_p
min_p; repetition frequency presence; bias pairs; banned ids; prompt ids; output ids; logits;
probabilities (0: not kept).
"""

import torch
from transformers.generation import logits_process as hf

VOCAB = 60


def distribution(case, logits):
    scores = logits.clone().unsqueeze(0)
    for token, bias in case.get("bias", []):
        scores[0, token] += bias
    for token in case.get("banned", []):
        scores[0, token] = -float("inf")
    seen = torch.tensor([case["prompt"] + case["output"]])
    if case["repetition"] != 1.0:
        scores = hf.RepetitionPenaltyLogitsProcessor(case["repetition"])(seen, scores)
    counts = torch.bincount(torch.tensor(case["output"], dtype=torch.long), minlength=VOCAB)
    scores = scores - case["frequency"] * counts - case["presence"] * (counts > 0)
    scores = hf.TemperatureLogitsWarper(case["temperature"])(seen, scores)
    if case["min_p"] > 0:
        scores = hf.MinPLogitsWarper(case["min_p"])(seen, scores)
    if case["top_k"] > 0:
        scores = hf.TopKLogitsWarper(case["top_k"])(seen, scores)
    if case["top_p"] < 1:
        scores = hf.TopPLogitsWarper(case["top_p"])(seen, scores)
    return torch.softmax(scores[0].double(), dim=0)


OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, frequency=0.0, presence=0.0,
           prompt=[], output=[])
CASES = {
    "plain": {},
    "hot": dict(temperature=2.5),
    "cold": dict(temperature=0.35),
    "top_k_1": dict(top_k=1),
    "top_k_5": dict(top_k=5),
    "top_k_beyond_vocabulary": dict(top_k=1000),
    "top_p_half": dict(top_p=0.5),
    "top_p_tiny": dict(top_p=1e-6),
    "top_p_most": dict(top_p=0.95, temperature=1.7),
    "min_p": dict(min_p=0.08),
    "min_p_one": dict(min_p=1.0),
    "top_k_and_top_p": dict(top_k=12, top_p=0.7),
    "min_p_and_top_p": dict(min_p=0.05, top_p=0.8, temperature=1.3),
    "all_filters": dict(temperature=1.4, min_p=0.02, top_k=15, top_p=0.85),
    "repetition": dict(repetition=1.6, prompt=[1, 2, 3, 3, 40, 41], output=[5, 5, 6, 59]),
    "repetition_reward": dict(repetition=0.7, prompt=[0, 7, 7], output=[8]),
    "frequency": dict(frequency=0.6, prompt=[1, 2], output=[4, 4, 4, 9, 30, 30]),
    "presence": dict(presence=-1.2, prompt=[1, 2], output=[4, 4, 4, 9, 30, 30]),
    "all_penalties": dict(repetition=1.3, frequency=0.4, presence=0.7, prompt=[11, 12, 13, 13],
                          output=[13, 14, 14, 15]),
    "bias": dict(bias=[(3, 4.0), (4, -100.0), (50, 2.5)]),
    "banned": dict(banned=[0, 1, 2, 3, 20, 21]),
    "everything": dict(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repetition=1.2, frequency=0.3,
                       presence=0.2, bias=[(10, 1.5), (11, -1.5)], banned=[5, 6], prompt=[10, 20, 30],
                       output=[20, 20, 31]),
}


def line(values):
    return " ".join(format(float(v), ".9g") for v in values)


def main():
    generator = torch.Generator().manual_seed(20260101)
    for name, changes in CASES.items():
        case = OFF | changes
        logits = torch.randn(VOCAB, generator=generator) * 1.8
        print(name)
        print(line([case["temperature"], case["top_k"], case["top_p"], case["min_p"]]))
        print(line([case["repetition"], case["frequency"], case["presence"]]))
        print(line([v for pair in case.get("bias", []) for v in pair]))
        print(line(case.get("banned", [])))
        print(line(case["prompt"]))
        print(line(case["output"]))
        print(line(logits))
        print(line(distribution(case, logits)))


if __name__ == "__main__":
    main()
