"""/tokenize, /detokenize and /apply-template give what transformers' own tokenizer gives."""
import json
import random

from clients.served import MODEL, STORY, post

TEXTS = ["", " ", "\n\n", STORY, "it's 12345 DON'T", "naïve café – “quoted”", "🦊👩‍👩‍👧 日本語 עברית",
         "a\u0301\ufeff\u200b\x00\x7f", "<|begin_of_text|>", "x <|end_of_text|> y", "<|begin_of_text",
         "  lead and trail  ", "\t\r\n mixed\n \n"]


def random_text(rng):
    alphabet = "ab Zé😀\n\t '.,0123–ß漢\u0301"
    return "".join(rng.choice(alphabet) if rng.random() < 0.8 else chr(rng.choice(
        [rng.randrange(32, 0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(rng.randrange(40)))


def same_tokens(report, server, num_cases, seed):
    from transformers import AutoTokenizer  # pylint: disable=import-outside-toplevel
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    rng = random.Random(seed)

    def ask(path, body):
        return json.loads(post(server.root + path, {"model": server.model} | body))

    for text in TEXTS + [random_text(rng) for _ in range(num_cases)]:
        for adds in (True, False):
            got = ask("/tokenize", {"prompt": text, "add_special_tokens": adds, "return_token_strs": True})
            want = tokenizer(text, add_special_tokens=adds)["input_ids"]
            report.equal(f"tokens of {text!r}", got["tokens"], want)
            report.equal(f"their texts {text!r}", got["token_strs"], tokenizer.convert_ids_to_tokens(want))
            report.equal(f"count of {text!r}", (got["count"], got["max_model_len"]), (len(want), 2048))
        report.equal(f"{text!r} comes back", ask("/detokenize", {"tokens": want})["prompt"],
                     tokenizer.decode(want))
    for _ in range(num_cases):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 20))]
        report.equal(f"text of {ids}", ask("/detokenize", {"tokens": ids})["prompt"], tokenizer.decode(ids))
    for case in range(num_cases):
        messages = [{"role": rng.choice(["system", "user", "assistant"]),
                     "content": random_text(rng).replace("<|", "")} for _ in range(rng.randint(1, 5))]
        adds = rng.random() < 0.5
        options = {"messages": messages, "add_generation_prompt": adds}
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=adds)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        report.equal(f"template of chat {case}", ask("/apply-template", options)["prompt"], text)
        report.equal(f"tokens of chat {case}", ask("/tokenize", options)["tokens"], ids)
