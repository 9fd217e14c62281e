"""Tests of the mask, EOS and largest token ids, which are read from flags, configs and tokenizers."""

import json

import pytest
from tokenizers import Tokenizer, models

from runtime.errors import ConfigError
from runtime.models.base import resolve_family
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.special_tokens import resolve_token_ids
from tests.models.tiny import write_random
from tests.oracle.tiny import write_tiny

TOKENS = ["a", "b", "<|role_end|>", "<|endoftext|>", "<|mask|>", "c"]


@pytest.fixture
def make(tmp_path):
    """Writes a checkpoint with a tokenizer of WORDS and returns a function that reads its ids."""

    def write(config=(), generation=None, tokenizer_config=None, tokens=TOKENS, **options):
        write_tiny(tmp_path, seed=1)
        settings = json.loads((tmp_path / "config.json").read_text())
        settings |= {"mask_token_id": None, "eos_token_id": None} | dict(config)
        (tmp_path / "config.json").write_text(json.dumps(settings))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        if tokenizer_config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
        if tokens is not None:
            vocab = {word: n for n, word in enumerate(tokens)}
            Tokenizer(models.WordLevel(vocab, unk_token=tokens[0])).save(str(tmp_path / "tokenizer.json"))
        checkpoint = resolve_checkpoint(str(tmp_path))
        family = resolve_family(None, checkpoint.config)
        return resolve_token_ids(checkpoint, family, family.facts(family.parse(checkpoint.config)), **options)

    return write


def test_the_familys_tokens_are_found_in_the_tokenizer(make):
    ids = make()
    assert (ids.mask, ids.eos, ids.max_token_id) == (4, (2,), 5)


def test_eos_is_the_union_of_all_sources(make):
    named = {"eos_token": {"content": "<|endoftext|>"}, "mask_token": "c"}
    ids = make({"eos_token_id": 0, "mask_token_id": 31}, generation={"eos_token_id": [1, 0]}, tokenizer_config=named)
    assert (ids.mask, ids.eos) == (31, (0, 1, 2, 3))


def test_the_tokenizers_mask_takes_precedence_over_the_familys(make):
    assert make(tokenizer_config={"mask_token": "c"}).mask == 5


def test_flags_override(make):
    ids = make(config={"eos_token_id": 0, "mask_token_id": 3}, mask_token_id=1, eos_token_ids=[5])
    assert (ids.mask, ids.eos) == (1, (5,))


def test_without_a_tokenizer_the_config_sets_the_vocabulary(make):
    ids = make(config={"eos_token_id": [3, 7], "mask_token_id": 31}, tokens=None, skip_tokenizer=True)
    assert (ids.mask, ids.eos, ids.max_token_id) == (31, (3, 7), 31)
    with pytest.raises(ConfigError, match="holds no tokenizer; add its files, or make tokenizer"):
        make(config={"mask_token_id": 31}, tokens=None)


def test_the_familys_ids_are_used_if_no_file_names_one(make):
    large = {"vocab_size": 156896}
    ids = make(config=large, tokens=None, skip_tokenizer=True)
    assert (ids.mask, ids.eos) == (156895, (156892,))
    assert make(config=large | {"eos_token_id": 5}, tokens=None, skip_tokenizer=True).eos == (5,)
    assert make(config=large, tokens=["a", "<|mask|>"]).mask == 1
    with pytest.raises(ConfigError, match="name no mask token; give its id with --mask-token-id"):
        make(tokens=None, skip_tokenizer=True)
    assert make(tokens=None, skip_tokenizer=True, mask_token_id=1).eos == ()


@pytest.mark.parametrize(
    ("family", "config_bos", "tokenizer_bos", "expected"),
    [
        ("dream", 3, "c", 5), ("dream", None, "c", 5), ("diffucoder", 3, {"content": "c"}, 5), ("dream", 3, None, None),
        ("dream", 3, "<s>", None), ("diffullama", 3, "c", 3), ("nemotron_diffusion", 3, "c", 3), ("sdar", 3, "c", None),
    ],
)  # fmt: skip
def test_the_bos_token_is_that_of_the_file_that_the_family_trusts(
    tmp_path, caplog, family, config_bos, tokenizer_bos, expected
):
    write_random(family, tmp_path, bos_token_id=config_bos)
    Tokenizer(models.WordLevel({word: n for n, word in enumerate(TOKENS)}, "a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": tokenizer_bos}))
    checkpoint, known = resolve_checkpoint(str(tmp_path)), resolve_family(family, {})
    info = known.facts(known.parse(checkpoint.config))
    assert resolve_token_ids(checkpoint, known, info).bos == expected
    assert ("no BOS token" in caplog.text) == (known.tokenizer_bos and expected is None)
    assert resolve_token_ids(checkpoint, known, info, skip_tokenizer=True).bos in (None, config_bos)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tokens": ["a", "b"]}, "--mask-token-id"),
        ({"mask_token_id": 32}, "--mask-token-id 32 is outside the vocabulary"),
        ({"eos_token_ids": [-1]}, "--eos-token-ids -1 is outside the vocabulary (0 to 31)"),
        ({"config": {"mask_token_id": 32}}, "config.json: mask_token_id 32 is outside the vocabulary (0 to 31)"),
        ({"config": {"eos_token_id": [1, 40]}}, "config.json: eos_token_id 40 is outside"),
        ({"generation": {"eos_token_id": 40}}, "generation_config.json: eos_token_id 40 is outside"),
        ({"mask_token_id": 2}, "both the mask and an end token"),
        ({"config": {"mask_token_id": "x"}}, "config.json: mask_token_id must be a token id"),
        ({"config": {"mask_token_id": [1, 2]}}, "config.json: mask_token_id must be one token id"),
        ({"config": {"eos_token_id": [True]}}, "config.json: eos_token_id must be a token id"),
        ({"generation": {"eos_token_id": "x"}}, "generation_config.json: eos_token_id"),
        ({"tokens": [str(n) for n in range(40)]}, "vocab_size is 32"),
        ({"config": {"vocab_size": "many"}}, "vocab_size"),
    ],
)
def test_refusals(make, arguments, sentence):
    with pytest.raises(ConfigError) as error:
        make(**arguments)
    assert sentence in str(error.value)


def test_a_broken_tokenizer(make, tmp_path):
    make()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a readable tokenizer"):
        make(tokens=None)
