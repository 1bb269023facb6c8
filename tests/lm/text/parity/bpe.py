"""Trains byte-level BPE with `tokenizers` and writes how it encodes random
text.

Usage: bpe.py FOLDER SEED TEXTS. Writes to FOLDER, for each pattern, a file for
the tokenizer and cases.json: [{"text", "ids", "decoded"}].
"""

import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

LLAMA_3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT_4 = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
NUMBERS = r"\p{N}"
END = "<|endoftext|>"
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "etaoinshr",
    "áàâäçéèêëíïñóöøßúüÿœæ", "αβγδεζηθικλμνξοπρστυφχψω",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя", "אבגדהוזחטיכלמנסעפצקרשת",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "अआइईउऊकखगघचछजझटठडढणतथदधनपफबभम",
    "กขคงจฉชซญดตถทธนบปผพฟมยรลวศษสหอฮ", "的一是不了人我在有他这中大来上国个到说们",
    "あいうえおかきくけこさしすせそ", "가나다라마바사아자차카타파하",
    "𝒜𝒞𝒟𝔄𝔅𝔇", "𐐀𐐁𐐨𐐩", "ǅǈǋʰʱªº",
]
MARKS = "\u0300\u0301\u0308\u0327\u0483\u05b4\u064b\u093e\u094d\u0e34\u20d0"
EMOJI = ["😀", "👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "❤\ufe0f", "🏴\U000e0067", "☺"]
BLANKS = [" ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0",
          "\u2003", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\x0b",
          "\x0c", "\x1c", "\x1f", "\ufeff", "        ", "\t\t\t"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Ve",
                "'ſ", "'K", "’s", "n't", "''s", "'x"]
NUMERALS = "0123456789٣٤५६二Ⅷ½²𝟘"
SYMBOLS = "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~«»…—“”€£№†§\x00\x01\x7f\xad"


def assigned():
    """Returns the characters that PCRE2 10.42 knows: Unicode 14 or older."""
    version = tuple(map(int, unicodedata.unidata_version.split(".")))
    known = unicodedata if version <= (14, 0, 0) else unicodedata.ucd_3_2_0
    return [chr(point) for point in range(0x110000)
            if known.category(chr(point)) not in ("Cn", "Cs", "Co")]


class Text:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.points = assigned()

    def piece(self):
        choose = self.random.choice
        kind = self.random.randrange(14)
        if kind < 6:
            letters = choose(ALPHABETS)
            length = self.random.randint(1, 9)
            return "".join(choose(letters) for _ in range(length))
        if kind == 6:
            return choose(CONTRACTIONS)
        if kind == 7:
            return "".join(choose(NUMERALS)
                           for _ in range(self.random.randint(1, 7)))
        if kind == 8:
            return choose(choose(ALPHABETS)) + choose(MARKS)
        if kind == 9:
            return choose(EMOJI)
        if kind == 10:
            return choose(SYMBOLS) * self.random.randint(1, 4)
        if kind == 11:
            return choose(self.points)
        if kind == 12:
            return choose([END, "<|", "|>", END[:-1], "<|added|>", "<|added|>x"])
        return choose("ab ") * self.random.randint(20, 90)

    def text(self, pieces):
        parts = []
        for _ in range(self.random.randint(0, pieces)):
            parts.append(self.piece())
            if self.random.random() < 0.6:
                parts.append(self.random.choice(BLANKS))
        return "".join(parts)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def splits(*patterns):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
        + [byte_level(use_regex=False)])


def train(pre_tokenizer, corpus, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=2000, show_progress=False, special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|added|>"])
    tokenizer.add_tokens([AddedToken("<|added|>x", normalized=True)])
    return tokenizer


def with_pairs(path, as_text):
    """Writes the merges of the file as "a b", or as ["a", "b"]."""
    document = json.loads(path.read_text(encoding="utf-8"))
    merges = [m.split(" ") if isinstance(m, str) else m
              for m in document["model"]["merges"]]
    document["model"]["merges"] = [" ".join(m) if as_text else m
                                   for m in merges]
    path.write_text(json.dumps(document), encoding="utf-8")


def cases(tokenizer, texts):
    result = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        result.append({"text": text, "ids": ids, "decoded": decoded})
    return result


def main():
    folder, seed, count = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    source = Text(seed)
    corpus = [source.text(40) for _ in range(1500)]
    # Every character once, between letters and digits.
    texts = [source.text(30) for _ in range(count)]
    texts += ["".join(f"a{c}1 {c}{c}" for c in source.points[i:i + 1000])
              for i in range(0, len(source.points), 1000)]
    texts += ["", " ", END, "a" * 5000, " " * 3000 + "x", "ab" * 3000]
    kinds = {
        "gpt2": train(byte_level(), corpus),
        "llama3": train(splits(LLAMA_3), corpus, ignore_merges=True),
        "gpt4": train(splits(GPT_4), corpus),
        "several": train(splits(NUMBERS, LLAMA_3), corpus),
        "prefix": train(pre_tokenizers.ByteLevel(add_prefix_space=True), corpus),
    }
    for name, tokenizer in kinds.items():
        place = folder / name
        place.mkdir()
        tokenizer.save(str(place / "tokenizer.json"))
        with_pairs(place / "tokenizer.json", as_text=name == "gpt2")
        (place / "cases.json").write_text(
            json.dumps(cases(tokenizer, texts)), encoding="utf-8")
    # In GPT-2's two files, the only added token is the end of a text.
    place = folder / "files"
    place.mkdir()
    kinds["gpt2"].model.save(str(place))
    plain = [text for text in texts if "<|added|>" not in text]
    (place / "cases.json").write_text(
        json.dumps(cases(kinds["gpt2"], plain)), encoding="utf-8")


def same(first, second, texts):
    """Returns whether two tokenizer.json files encode and decode in the same
    way.
    """
    ours, theirs = (Tokenizer.from_file(path) for path in (first, second))
    for case in json.loads(pathlib.Path(texts).read_text(encoding="utf-8")):
        encoded = ours.encode(case["text"], add_special_tokens=False)
        assert encoded.ids == case["ids"], case["text"]
        assert ours.decode(case["ids"], skip_special_tokens=False) == \
            theirs.decode(case["ids"], skip_special_tokens=False)
    print("same")


if __name__ == "__main__":
    if sys.argv[1] == "same":
        same(*sys.argv[2:])
    else:
        main()
