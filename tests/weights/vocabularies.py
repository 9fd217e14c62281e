"""Builds tokenizers in their published formats, with an independent encoder for each format."""

import base64
import functools
import io
import itertools
import json
import random
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import regex
import sentencepiece
import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[2]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
SENTENCES = (
    "naïve café – Ünïcödé 12,345.67",
    "Привет, мир! Быстрая лиса. Ελληνικά γράμματα",
    "日本語の文と中文的句子。 한국어 문장입니다.",
    "नमस्ते दुनिया สวัสดีชาวโลก مرحبا بالعالم שלום עולם",
    "😀👍🏽 👩‍💻 🎉 ∑∫√ €£¥ it's we'll they've",
    "def f(x):\n\treturn x ** 2  # 注释\r\n\n    if a != b:",
)
# First and last code points of the characters in random texts.
RANGES = (
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0x7F, 0xA0), (0xA1, 0x24F), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x900, 0x97F), (0xE01, 0xE5B), (0x1100, 0x11FF), (0x2000, 0x206F),
    (0x20A0, 0x20BF), (0x2190, 0x22FF), (0x2580, 0x259F), (0x3041, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xFB00, 0xFB06), (0xFE00, 0xFE0F), (0xFF01, 0xFF5E), (0x10330, 0x1034A), (0x1D400, 0x1D433), (0x1F300, 0x1F64F),
    (0x1F680, 0x1F6FF), (0x20000, 0x200FF), (0xE000, 0xE010),
)  # fmt: skip
FRAGMENTS = (
    " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "the", "The", "quick", "12", "3456", "<s>", "</s>", "<unk>", "<0x41>",
    "▁", "👩‍💻", "👍🏽", "🇩🇪", "é", "ﬁ", "Å", "…", *SPECIALS,
)  # fmt: skip


@functools.cache
def random_texts(count: int = 2000, seed: int = 36) -> tuple[str, ...]:
    """Returns random texts of many scripts, emoji, control characters and the text of special tokens."""
    source = random.Random(seed)
    texts = []
    for _ in range(count):
        parts: list[str] = []
        blocks = source.sample(RANGES, source.randint(1, 3))
        for _ in range(source.randint(0, 12)):
            if source.random() < 0.4:
                parts.append(source.choice(FRAGMENTS))
                continue
            low, high = source.choice(blocks)
            run = "".join(chr(source.randint(low, high)) for _ in range(source.randint(1, 6)))
            parts.append("".join(char for char in run if unicodedata.category(char) != "Cn"))
        texts.append("".join(parts))
    return tuple(texts)


@functools.cache
def corpus() -> tuple[str, ...]:
    """Returns the lines of `corpus.txt`, which is independent of the documentation, and lines of other scripts."""
    lines = (ROOT / "tests" / "weights" / "corpus.txt").read_text(encoding="utf-8").splitlines()
    return (*lines, *SENTENCES * 5)


def train_bpe(pattern: str, size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Trains a byte-level vocabulary of `size` tokens, and returns it with its merges."""
    library = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library.train_from_iterator(
        corpus(), trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(library.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def write_bpe(
    directory: Path, tokenizer_class: str = "Qwen2Tokenizer", pattern: str = QWEN, size: int = 900, **config: Any
) -> Callable[[str], list[int]]:
    """Writes vocab.json, merges.txt, added_tokens.json and configs; returns a naive encoder of the same files."""
    vocabulary, merges = train_bpe(pattern, size)
    (directory / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    rows = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (directory / "merges.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    write_specials(directory, len(vocabulary), tokenizer_class=tokenizer_class, **config)
    return naive_bpe(vocabulary, merges, pattern, "NFC" if tokenizer_class != "GPT2Tokenizer" else None)


def write_specials(directory: Path, first: int, **config: Any) -> None:
    """Writes added_tokens.json, special_tokens_map.json and tokenizer_config.json; special ids begin at `first`."""
    numbers = {text: first + n for n, text in enumerate(SPECIALS)}
    (directory / "added_tokens.json").write_text(json.dumps(numbers))
    named = {"eos_token": SPECIALS[0], "mask_token": SPECIALS[3], "additional_special_tokens": list(SPECIALS)}
    (directory / "special_tokens_map.json").write_text(json.dumps(named))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def naive_bpe(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], pattern: str, form: Any
) -> Callable[[str], list[int]]:
    """Returns an encoder with byte-level BPE as in its paper: it merges all best pairs until none is left."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    letters = byte_letters()
    split = regex.compile(pattern)

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for word in split.findall(unicodedata.normalize(form, text) if form else text):
            parts = [letters[byte] for byte in word.encode()]
            while True:
                pairs = [pair for pair in itertools.pairwise(parts) if pair in ranks]
                if not pairs:
                    break
                best = min(pairs, key=ranks.__getitem__)
                parts = list(_merged(parts, best))
            ids += [vocabulary[part] for part in parts]
        return ids

    return encode


def _merged(parts: Sequence[str], pair: tuple[str, str]) -> Iterator[str]:
    index = 0
    while index < len(parts):
        if tuple(parts[index : index + 2]) == pair:
            yield "".join(pair)
            index += 2
        else:
            yield parts[index]
            index += 1


@functools.cache
def byte_letters() -> dict[int, str]:
    """Returns GPT-2's letter for each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in visible}
    rest = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + number) for number, byte in enumerate(rest)}


@functools.cache
def sentencepiece_model(without: str = "", **options: Any) -> bytes:
    """Trains and returns a sentencepiece model. `options`: those of the trainer; `without`: characters to remove."""
    model = io.BytesIO()
    lines = (line.translate(dict.fromkeys(map(ord, without))) for line in corpus())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, minloglevel=2, num_threads=1,
        **{"vocab_size": 800, "character_coverage": 0.995, "hard_vocab_limit": False} | options,
    )  # fmt: skip
    return model.getvalue()


LLAMA = {
    "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}  # fmt: skip


def write_sentencepiece(
    directory: Path, options: Mapping[str, Any], file: str = "tokenizer.model", **config: Any
) -> Callable[[str], list[int]]:
    """Writes a sentencepiece model and a config; returns the library's own encoder."""
    model = sentencepiece_model(**options)
    (directory / file).write_bytes(model)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **config}))
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return lambda text: processor.encode(text)


def write_tiktoken(
    directory: Path, file: str = "tokenizer.model", pattern: str = LLAMA3, **config: Any
) -> Callable[[str], list[int]]:
    """Writes a tiktoken file and a config; returns the library's own encoder."""
    vocabulary, _ = train_bpe(pattern, 900)
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    ranks = {bytes(bytes_of[letter] for letter in text): rank for text, rank in vocabulary.items()}
    rows = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    (directory / file).write_text("\n".join(rows) + "\n")
    numbers = {str(len(ranks) + n): {"content": text, "special": True} for n, text in enumerate(SPECIALS)}
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": numbers} | config))
    library = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: library.encode_ordinary(text)
