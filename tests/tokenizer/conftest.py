"""Builds small tokenizers of the kinds that checkpoints use."""

import json

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from runtime.tokenizer import Tokenizer

SPECIALS = ("<|end|>", "<|mask|>", "<role>", "</role>", "<|role_end|>")
CORPUS = ["the quick brown fox jumps", "Solve: 12 + 30.", "naïve café – 東京 😀", "aaa bb ab\n"] * 4
TEMPLATE = (
    "{%- for m in messages -%}"
    "{%- if m.role not in ('system', 'user', 'assistant') -%}{{ raise_exception('Unknown <role> ' ~ m.role) }}"
    "{%- endif -%}"
    "{%- if m.role == 'assistant' and '<|end|>' in m.content -%}{% set text = m.content.split('<|end|>')[0] -%}"
    "{%- else -%}{% set text = m.content -%}{%- endif -%}"
    "{{ '<role>' + m.role|upper + '</role>' ~ text }}{% if note %}{{ note|lower }}{% endif %}<|role_end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<role>ASSISTANT</role>{%- endif -%}"
)


def byte_level() -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    return library


def sentencepiece() -> Library:
    """Returns a tokenizer like Llama's, with "▁" for spaces and with byte fallback."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "ab", "▁a", "▁▁", "é", "▁the", "x▁y"]
    merges = [("a", "b"), ("▁", "a"), ("▁", "▁")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    library = Library(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library


def metaspace() -> Library:
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("b", -2.0), ("▁ab", -1.0), ("▁a▁", -1.5), ("ő", -3.0)]
    library = Library(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    library.decoder = decoders.Metaspace(prepend_scheme="first")
    return library


KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace}


def save(library: Library, directory, *, template: str | None = TEMPLATE, special: bool = True, **config) -> None:
    library.add_tokens([AddedToken(s, special=special, normalized=False) for s in SPECIALS])
    library.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "mask_token": {"content": "<|mask|>"}, "chat_template": template} | config
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def specials_in(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns the special tokens among the ids, in their order."""
    texts = {tokenizer.token_id(text): text for text in SPECIALS}
    return [texts[number] for number in ids if number in texts]


@pytest.fixture(scope="session", params=sorted(KINDS))
def pair(request, tmp_path_factory):
    """Returns the runtime's tokenizer and that of the library, loaded from the same files."""
    directory = tmp_path_factory.mktemp(request.param)
    save(KINDS[request.param](), directory)
    return Tokenizer(directory), Library.from_file(str(directory / "tokenizer.json"))


@pytest.fixture
def directory(tmp_path):
    save(byte_level(), tmp_path)
    return tmp_path
