#!/usr/bin/env python3
"""Makes testdata/: small tokenizers in the configurations of well-known models, strings, and what
Hugging Face `tokenizers` makes of them.

    python3 make_tokenizer_golden.py            # needs `pip install tokenizers` (made with 0.23.3)

The tokenizers are trained here, on text written or generated in this file, so that nothing has to be
downloaded; what they share with the real ones is everything but the vocabulary: normaliser,
pre-tokeniser, model options, post-processor and decoder. The result is deterministic.
"""

import json
import pathlib
import random
import unicodedata

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import AddedToken, trainers

OUT = pathlib.Path(__file__).parent / "testdata"
VOCAB_SIZE = 1000

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")
# A pattern with case classes, as newer models use; it has no hand-written splitter.
CASED_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Oniguruma reads the inner brackets as a class inside the class, and | and ( as themselves.
BLOOM_PATTERN = r" ?[^(\s|[.,!?…。，、।۔،])]+"

SENTENCES = """\
The scheduler keeps every request, and the workers keep only what can be computed again.
When a block is full, it is hashed; when it is free, it waits at the end of the list.
She said that she'd been there twice, but they're sure he'll come, and we've seen it: it's true.
I'm not going to say what I don't know. You CAN'T DO THAT, IT'S WRONG, WE'LL SEE.
In 1969 the bill was $1,234,567.89, or about 12.5% more than 98765432100 lire.
Der schnelle braune Fuchs springt über den faulen Hund; Straße, Größe, Übermut und Äpfel.
Le garçon a mangé une pêche près de la forêt où naît l'été, ça va très bien, n'est-ce pas ?
El niño comió piñas mañana por la mañana. ¿Dónde está la biblioteca? ¡Qué alegría!
Съешь же ещё этих мягких французских булок, да выпей чаю. Сегодня хорошая погода.
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. Καλημέρα σας.
今天天气很好,我们一起去公园散步吧。计算机把文字变成数字,再把数字变成文字。
吾輩は猫である。名前はまだ無い。カタカナとひらがなと漢字が混ざっています。
나는 오늘 아침에 밥을 먹고 학교에 갔습니다. 한국어 문장은 띄어쓰기가 있습니다.
मैं आज सुबह स्कूल गया था। हिन्दी में बहुत से संयुक्त अक्षर होते हैं।
ฉันรักภาษาไทย วันนี้อากาศดีมาก ไม่มีการเว้นวรรคระหว่างคำ
السلام عليكم ورحمة الله وبركاته، كيف حالك اليوم؟ أنا بخير.
שלום לכם, מה שלומכם היום? הכול בסדר, תודה רבה.
for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }  // the dot product
def main():\n    for x in range(10):\n        print(f"{x:>4}", end="\\t")\n    return None\n
<html><body class="page">\n\t<p>Hello, <b>world</b>!</p>\n</body></html>
{"name": "quire", "version": [0, 1, 0], "ok": true, "none": null}
SELECT a.id, COUNT(*) FROM tokens AS a WHERE a.text LIKE '%the%' GROUP BY a.id HAVING COUNT(*) > 3;
https://example.org/path/to/page.html?query=1&other=two#fragment
""".replace("\\n", "\n").replace("\\t", "\t").splitlines()

SYLLABLES = "ka lo mi ren ta shi vor ble tion ing er an un pre con der the sch ou ei qu st ly".split()


def corpus():
    """Lines for training: the sentences, and generated words in their neighbourhood."""
    rng = random.Random(7)
    lines = []
    for _ in range(12):
        lines += SENTENCES
        for _ in range(40):
            words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(9)]
            lines.append(" ".join(words) + rng.choice([".", "!", "?", ";", "..."]))
        lines += ["    " * k + "return x" for k in range(1, 5)]
    return lines


# --------------------------------------------------------------------------------- tokenizers


def train(pre_tokenizer, special_tokens, alphabet, vocab_size=VOCAB_SIZE):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return json.loads(tokenizer.to_str())


def byte_level(special_tokens, pattern=None):
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern:
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    # Real vocabularies have the alphabet first and the special tokens last.
    data = train(split, [], pre_tokenizers.ByteLevel.alphabet())
    data["added_tokens"] = [
        added(len(data["model"]["vocab"]) + i, text) for i, text in enumerate(special_tokens)
    ]
    data["decoder"] = {
        "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True,
    }
    return data


def added(id, content, special=True, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
    token.update(flags)
    return token


def template(token, id, suffix=None):
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    specials = {token: {"id": token, "ids": [id], "tokens": [token]}}
    if suffix:
        single.append({"SpecialToken": {"id": suffix[0], "type_id": 0}})
        specials[suffix[0]] = {"id": suffix[0], "ids": [suffix[1]], "tokens": [suffix[0]]}
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": specials}


def gpt2():
    data = byte_level(["<|endoftext|>"])
    data["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                              "use_regex": True}
    data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    return data


def opt():
    data = byte_level(["<s>", "<pad>", "</s>", "<unk>"])
    end = data["added_tokens"][2]["id"]
    data["added_tokens"][1]["normalized"] = True
    data["post_processor"] = template("</s>", end)
    return data


def roberta_like():
    data = byte_level(["<s>", "</s>"])
    data["pre_tokenizer"]["add_prefix_space"] = True
    ids = {token["content"]: token["id"] for token in data["added_tokens"]}
    mask = max(ids.values()) + 1
    data["added_tokens"].append(added(mask, "<mask>", lstrip=True))
    data["added_tokens"].append(added(mask + 1, "<word>", special=False, single_word=True))
    data["added_tokens"].append(added(mask + 2, "<right>", special=False, rstrip=True))
    data["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]],
                              "cls": ["<s>", ids["<s>"]], "trim_offsets": True,
                              "add_prefix_space": True}
    return data


def llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(4)]
    names += ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    data = byte_level(names, LLAMA3_PATTERN)
    begin = data["added_tokens"][0]["id"]
    data["model"]["ignore_merges"] = True
    data["post_processor"] = {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            template("<|begin_of_text|>", begin),
        ],
    }
    # Whole words without a path of merges: only ignore_merges finds them.
    vocab = data["model"]["vocab"]
    for word, victim in zip(["Ġscheduler!", "recompute", "Ã¼ber"], sorted(vocab, key=vocab.get)[-3:]):
        if word not in vocab and not any(victim in merge for merge in data["model"]["merges"]):
            data["model"]["merges"] = [m for m in data["model"]["merges"] if "".join(m) != victim]
            vocab[word] = vocab.pop(victim)
    return data


def qwen2():
    data = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], QWEN2_PATTERN)
    data["normalizer"] = {"type": "NFC"}
    data["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                              "use_regex": False}
    return data


def cased():
    """Everything unusual at once: PCRE2 pattern, several steps, added tokens with every flag."""
    data = byte_level(["<|end|>"], CASED_PATTERN)
    data["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFKC"},
            {"type": "Lowercase"},
            {"type": "Strip", "strip_left": True, "strip_right": False},
            {"type": "Replace", "pattern": {"Regex": "\u2026|\\.{4,}"}, "content": "..."},
        ],
    }
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"String": "@@"}, "behavior": "MergedWithPrevious",
             "invert": False},
            {"type": "Split", "pattern": {"Regex": "[A-Za-z]+:"}, "behavior": "MergedWithNext",
             "invert": False},
            {"type": "Split", "pattern": {"Regex": CASED_PATTERN}, "behavior": "Removed",
             "invert": True},
            {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False},
        ],
    }
    next_id = data["added_tokens"][-1]["id"] + 1
    data["added_tokens"] += [
        added(next_id, "<Tool>", special=False, normalized=True),
        added(next_id + 1, "[LEFT]", special=False, lstrip=True),
        added(next_id + 2, "[RIGHT]", special=True, rstrip=True),
        added(next_id + 3, "word", special=False, single_word=True),
        added(next_id + 4, "  ", special=False),
        added(next_id + 5, "    ", special=False),
    ]
    return data


def bloom():
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(BLOOM_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    names = ["<unk>", "<s>", "</s>", "<pad>"]  # first in the vocabulary
    data = train(split, names, pre_tokenizers.ByteLevel.alphabet())
    data["added_tokens"] = [added(i, name) for i, name in enumerate(names)]
    data["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                              "use_regex": False}
    data["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                       "use_regex": False}
    return data


def sentencepiece(pre_tokenizer, extra_tokens=()):
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = sorted({c for line in SENTENCES[:11] for c in line if c not in " \n\t"})
    data = train(pre_tokenizer, special, alphabet)
    # Characters beyond the alphabet shall fall back to bytes.
    known = set(alphabet) | {"▁"}
    vocab = data["model"]["vocab"]
    keep = sorted((t for t in vocab if t in special or set(t) <= known), key=vocab.get)
    data["model"]["vocab"] = {token: i for i, token in enumerate(keep)}
    data["model"]["merges"] = [
        m for m in data["model"]["merges"] if set(m[0] + m[1]) <= known
    ]
    for left, right in extra_tokens:
        data["model"]["vocab"][left + right] = len(data["model"]["vocab"])
        data["model"]["merges"].append([left, right])
    data["added_tokens"] = [added(i, special[i]) for i in range(3)]
    data["model"].update({"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"})
    data["post_processor"] = template("<s>", 1)
    data["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return data


def llama2():
    runs = [("▁" * n, "▁" * n) for n in (1, 2, 4)]
    data = sentencepiece(pre_tokenizers.Metaspace(), runs)
    data["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    data["pre_tokenizer"] = None
    data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    return data


def mistral():
    # Trained on whole lines: its tokens may have a space inside.
    data = sentencepiece(pre_tokenizers.Metaspace(split=False))
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                             "split": False}
    data["added_tokens"].append(added(len(data["model"]["vocab"]), "[INST]"))
    data["added_tokens"].append(added(len(data["model"]["vocab"]) + 1, "big dog", special=False,
                                      normalized=True))
    return data


def metaspace():
    """Without byte fallback: unknown characters become <unk>, one each."""
    data = sentencepiece(pre_tokenizers.Metaspace())
    vocab = data["model"]["vocab"]
    keep = sorted((t for t in vocab if not t.startswith("<0x")), key=vocab.get)
    data["model"]["vocab"] = {token: i for i, token in enumerate(keep)}
    data["model"].update({"byte_fallback": False, "fuse_unk": False})
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                             "split": True}
    data["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                       "split": True}
    data["post_processor"] = template("<s>", 1, ("</s>", 2))
    return data


TOKENIZERS = [gpt2, opt, roberta_like, llama3, qwen2, cased, bloom, llama2, mistral, metaspace]

# ------------------------------------------------------------------------------------ strings

SPECIAL_TEXT = [
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>",
    "<|im_start|>", "<|im_end|>", "[INST]", "<|end|>", "<Tool>", "<tool>", "[LEFT]", "[RIGHT]", "word",
    "<word>", "<right>", "big dog", "<0x0A>", "<0x41>", "<|reserved_special_token_3|>",
]

HAND_WRITTEN = [
    "", " ", "  ", "   ", "\n", "\r\n", "\t", " \n", "\n ", "\n\n\n", " \n \n ", "\r\r\n\n", "a", " a", "a ",
    "  a", "a  ", "a  b", "a   b   c", "a\n\nb", "a \n b", "a\t\tb", "a\u00a0b", "a\u3000b", "\u2003x",
    "x\u2028y\u2029z", "x\u0085y", "x\u180ey", "\u200bzero\u200bwidth\u200b", "\ufeffbom", "\0", "a\0b", "\0\0\0",
    "\x01\x02\x7f", "\x1b[31mred\x1b[0m", "'", "''", "'s", "'S", "'re", "'RE", "'Ll", "'ſ", "it'ſ", "'st",
    "don't", "DON'T", "we'll've", "o'clock", "'tis", "l'été", "x'y'z", "\u2019s", "1", "12", "123", "1234",
    "12345", "1234567", "1,234.5", "3.14159", "1e-10", "0x1F", "٣٤٥٦", "१२३४", "Ⅷ", "½", "²³", "①②③④",
    "é", "e\u0301", "\u1e9b\u0323", "A\u030a", "Å", "\u212b", "\u0344", "가", "\u1100\u1161", "\u1100\u1161\u11a8",
    "\ubcd8\u11a7", "\u1107\u1168\u11a7\u11a8",
    "ﬁ", "ﬃ", "Ǆ", "ß", "ẞ", "İ", "ı", "ς", "Σ", "ΑΣ", "\ufdfa", "㎏", "㍿", "ｱ", "Ａ", "\U0001d400",
    "a\u0316\u0301\u05b0", "\u0301", "\u0301\u0301\u0301", "q\u0307\u0323", "q\u0323\u0307", "\u0b92\u0bd7",
    "👍", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇩🇪🇫🇷", "🇩", "☺️", "#️⃣", "🧑🏿‍🚀", "🫠", "a👍b", "👍👍👍👍",
    "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\U000e0041", "\ue000", "\U000f0000", "\u0378",
    "\u202eabc\u202c", "\u2066x\u2069", "שָׁלוֹם", "مُحَمَّد", "a\u0300\u0301\u0302\u0303", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘",
    "▁", "▁▁", "a▁b", " ▁ ", "Ġ", "Ċ", "Ā", "ĠthĠe", "<0x", "<0xZZ>", "<0x4>", "</", "<|", "|>", "<<s>>",
    "a....b", "wait…", "@@x@@y", "key: value: x", "BigDogCamelCase", "HTTPServer2Go", "snake_case_name",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈𐌰", "𓀀𓁐", "𠜎𠜱", "ꙮ", "ᚠᛇᚻ", "⠓⠑⠇⠇⠕", "ⴰⵣⵓⵍ", "\u1c89\ua7cb", "\U000105c0", "\U0001e5d0",
]

SCRIPTS = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F)], "greek": [(0x391, 0x3C9)],
    "cyrillic": [(0x410, 0x44F)], "armenian": [(0x531, 0x556)], "hebrew": [(0x5D0, 0x5EA)],
    "arabic": [(0x621, 0x64A), (0x64B, 0x652)], "syriac": [(0x710, 0x72F)],
    "devanagari": [(0x904, 0x94D), (0x966, 0x96F)], "bengali": [(0x985, 0x9CD)],
    "gurmukhi": [(0xA05, 0xA4D)], "gujarati": [(0xA85, 0xACD)], "tamil": [(0xB85, 0xBCD)],
    "telugu": [(0xC05, 0xC4D)], "kannada": [(0xC85, 0xCCD)], "malayalam": [(0xD05, 0xD4D)],
    "sinhala": [(0xD85, 0xDDF)], "thai": [(0xE01, 0xE4E), (0xE50, 0xE59)],
    "lao": [(0xE81, 0xECD)], "tibetan": [(0xF40, 0xF84)], "myanmar": [(0x1000, 0x1049)],
    "georgian": [(0x10D0, 0x10F0)], "hangul": [(0xAC00, 0xD7A3)], "jamo": [(0x1100, 0x11FF)],
    "ethiopic": [(0x1200, 0x137C)], "cherokee": [(0x13A0, 0x13F5)], "khmer": [(0x1780, 0x17E9)],
    "mongolian": [(0x1810, 0x1842)], "hiragana": [(0x3041, 0x3096)], "katakana": [(0x30A1, 0x30FA)],
    "han": [(0x4E00, 0x9FFF)], "han_extension": [(0x20000, 0x20100), (0x30000, 0x30050)],
    "yi": [(0xA000, 0xA0FF)], "math": [(0x2200, 0x22FF), (0x1D400, 0x1D7FF)],
    "box": [(0x2500, 0x259F)], "arrows": [(0x2190, 0x21FF)], "punctuation": [(0x2000, 0x206F)],
    "currency": [(0x20A0, 0x20BF)], "emoji": [(0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF)],
    "flags": [(0x1F1E6, 0x1F1FF)], "tags": [(0xE0020, 0xE007F)], "marks": [(0x300, 0x36F)],
    "new_marks": [(0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF)], "fullwidth": [(0xFF01, 0xFF5E)],
    "compatibility": [(0x3300, 0x33FF), (0xFB00, 0xFB4F)], "superscript": [(0x2070, 0x209C)],
    "numbers": [(0x2150, 0x218B), (0x2460, 0x249B)], "private": [(0xE000, 0xE010)],
    "gothic": [(0x10330, 0x1034A)], "cuneiform": [(0x12000, 0x1205F)], "control": [(0, 0x1F), (0x7F, 0x9F)],
    "unicode_16": [(0x1C89, 0x1C8A), (0x105C0, 0x105F3), (0x10D40, 0x10D65), (0x16D40, 0x16D79)],
    "all": [(0, 0xD7FF), (0xE000, 0x10FFFF)],
}

SPACES = [" "] * 6 + ["  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2009", " \n", "\n "]


def random_word(rng, ranges, length):
    chars = []
    for _ in range(length):
        low, high = rng.choice(ranges)
        chars.append(chr(rng.randint(low, high)))
    return "".join(chars)


def strings():
    rng = random.Random(20)
    result = list(HAND_WRITTEN)
    for sentence in SENTENCES:
        result.append(sentence)
        for _ in range(6):
            start = rng.randrange(len(sentence) or 1)
            result.append(sentence[start : start + rng.randint(1, 20)])
    for ranges in SCRIPTS.values():
        for _ in range(12):
            words = [random_word(rng, ranges, rng.randint(1, 6)) for _ in range(rng.randint(1, 3))]
            result.append("".join(word + rng.choice(SPACES + [""]) for word in words))
    for _ in range(330):  # scripts mixed, with marks, digits and symbols between
        parts = []
        for _ in range(rng.randint(2, 4)):
            parts.append(random_word(rng, SCRIPTS[rng.choice(list(SCRIPTS))], rng.randint(1, 3)))
            parts.append(rng.choice(SPACES + ["", "'s", "'LL", "-", "...", "!?", "\u0301", "7", "2024"]))
        result.append("".join(parts))
    for _ in range(250):  # white space against everything
        result.append("".join(rng.choice(SPACES + list("ab1.'\0")) for _ in range(rng.randint(2, 9))))
    for _ in range(120):
        result.append("".join(rng.choice("0123456789.,-+ eE") for _ in range(rng.randint(2, 16))))
    for _ in range(150):  # code
        pieces = ["if", "(", ")", "{", "}", "x", "=", "==", "->", "::", ";", "\n", "    ", "\t", "//", "#",
                  "_", "__", "foo_bar", "Foo", "0x7f", '"', "'", "\\", "\\n", "&&", "|", "%", "@"]
        result.append("".join(rng.choice(pieces) for _ in range(rng.randint(3, 10))))
    for _ in range(150):  # English-like, the case that matters most
        words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(rng.randint(2, 6))]
        result.append(rng.choice(["", " "]) + " ".join(words).capitalize() + rng.choice([".", "?", ""]))
    for char in " x_=-.\n0é中👍":  # runs
        for length in (7, 64, 200):
            result.append(char * length)
    first_special = len(result)
    for text in SPECIAL_TEXT:
        result += [text, text + text, " " + text, text + " ", f"a{text}b", f"a {text} b", f"  {text}\n x"]
    for _ in range(120):
        parts = [rng.choice(SPECIAL_TEXT + ["Hello", " world", " ", "  ", "\n", "é", "x"]) for _ in range(5)]
        result.append("".join(parts))
    return result, first_special


# --------------------------------------------------------------------------------- expectations


def mixes_text_and_loose_bytes(tokenizer, ids):
    """Where Quire keeps the complete characters of a broken run of byte tokens and HF does not."""
    run = bytearray()
    for id in list(ids) + [None]:
        token = tokenizer.id_to_token(id) if id is not None else ""
        if token and token.startswith("<0x") and len(token) == 6:
            run.append(int(token[3:5], 16))
            continue
        decoded = run.decode("utf-8", "replace")
        if "\ufffd" in decoded and decoded.strip("\ufffd"):
            return True
        run = bytearray()
    return False


def random_ids(tokenizer, rng):
    """Token sequences that no text encodes to: broken characters, special tokens, ids of gaps."""
    size = tokenizer.get_vocab_size()
    sequences = []
    while len(sequences) < 150:
        bytes_only = rng.random() < 0.3
        top = min(size, 260) if bytes_only else size
        ids = [rng.randrange(top) for _ in range(rng.randint(1, 10))]
        if not mixes_text_and_loose_bytes(tokenizer, ids):
            sequences.append(ids)
    return sequences


def expectations(tokenizer, texts, first_special):
    rng = random.Random(5)
    tokenizer.encode_special_tokens = False
    encodings = [tokenizer.encode(text).ids for text in texts]
    decoded = {}
    for i, (text, ids) in enumerate(zip(texts, encodings)):
        back = tokenizer.decode(ids)
        if back != text:
            decoded[str(i)] = back
    sequences = random_ids(tokenizer, rng)
    loose = [[" ".join(map(str, ids)), tokenizer.decode(ids)] for ids in sequences]
    kept = [[" ".join(map(str, ids)), tokenizer.decode(ids, skip_special_tokens=False)]
            for ids in encodings[first_special : first_special + 60]]
    # PCRE2 10.42 knows Unicode 14, as this Python does; what is newer is not compared where it runs.
    assert unicodedata.unidata_version == "14.0.0"
    runs_pcre2 = "\\p{Lu}" in tokenizer.to_str()
    skipped = [runs_pcre2 and any(unicodedata.category(c) == "Cn" for c in text) for text in texts]
    tokenizer.encode_special_tokens = True
    plain = {
        str(i): " ".join(map(str, tokenizer.encode(texts[i], add_special_tokens=False).ids))
        for i in list(range(0, first_special, 16)) + list(range(first_special, len(texts)))
        if not skipped[i]
    }
    return {
        "encode": [None if skip else " ".join(map(str, ids)) for skip, ids in zip(skipped, encodings)],
        "plain": plain,
        "decode_where_not_the_text": decoded,
        "decode_ids": loose,
        "decode_with_special": kept,
    }


def dump(path, data, indent=None):
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(data, ensure_ascii=False, indent=indent, separators=separators)
    path.write_text(text + "\n", encoding="utf-8")


def main():
    OUT.mkdir(exist_ok=True)
    texts, first_special = strings()
    dump(OUT / "strings.json", texts, indent=0)
    for make in TOKENIZERS:
        data = make()
        path = OUT / f"{make.__name__}.tokenizer.json"
        dump(path, data)
        tokenizer = Tokenizer.from_file(str(path))
        for token in data["added_tokens"]:
            assert tokenizer.token_to_id(token["content"]) == token["id"], token
        dump(OUT / f"{make.__name__}.golden.json", expectations(tokenizer, texts, first_special))
    print(len(texts), "strings, tokenizers", tokenizers.__version__)


if __name__ == "__main__":
    main()
