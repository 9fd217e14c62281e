"""Tests of checkpoints without tokenizer.json: ids of converted tokenizers, the cache, limits and messages."""

import errno
import json
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from sentencepiece import SentencePieceProcessor

from runtime.errors import ConfigError
from runtime.tokenizer import Tokenizer
from runtime.weights import tokenizer_json
from tests.clients.catalogue import client
from tests.clients.environments import environment
from tests.matrix import marked
from tests.wait import wait_until
from tests.weights.vocabularies import (
    GPT2,
    LLAMA,
    LLAMA3,
    QWEN,
    SPECIALS,
    random_texts,
    sentencepiece_model,
    write_bpe,
    write_sentencepiece,
    write_tiktoken,
)

Encoder = Callable[[str], list[int]]
DREAM = {"auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]}}
QWEN_1 = {
    "tokenizer_class": "QWenTokenizer",
    "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]},
}
UNIGRAM = LLAMA | {"model_type": "unigram"}
DEFAULT_RULES = {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"}
FOLDER = Path(__file__).parent / "transformers4"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of an empty cache for this test."""
    base = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    monkeypatch.delenv(tokenizer_json.TEMPORARY_VARIABLE, raising=False)
    return base / "unmask" / "tokenizers"


ROOT = tokenizer_json.__file__.rpartition("/runtime/")[0]
LOAD = "import sys\nfrom runtime.tokenizer import Tokenizer\ntokenizer = Tokenizer(sys.argv[1])\n"


def python(script: str, *arguments: Path, **env: str) -> list[str]:
    """Runs a script in another process and returns the words that it prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


FORMATS: dict[str, Callable[[Path], Encoder]] = {
    "vocab.json and merges.txt of Qwen2": write_bpe,
    "vocab.json and merges.txt of GPT-2": lambda path: write_bpe(path, "GPT2Tokenizer", GPT2),
    "vocab.json and merges.txt of a class of the repository": lambda path: write_bpe(path, "DreamTokenizer", **DREAM),
    "sentencepiece, bpe": lambda path: write_sentencepiece(path, LLAMA),
    "sentencepiece, bpe, not legacy": lambda path: write_sentencepiece(path, LLAMA, legacy=False),
    "sentencepiece, unigram": lambda path: write_sentencepiece(path, UNIGRAM),
    "sentencepiece without prefix": lambda path: write_sentencepiece(path, LLAMA | {"add_dummy_prefix": False}),
    "sentencepiece with symbols": lambda path: write_sentencepiece(
        path, LLAMA | {"user_defined_symbols": "<sep>,[X]"}, legacy=False),
    "sentencepiece with symbols of spaces": lambda path: write_sentencepiece(
        path, LLAMA | {"user_defined_symbols": "▁▁,▁▁▁▁,<sep>", "add_dummy_prefix": False},
        tokenizer_class="GemmaTokenizer"),
    "sentencepiece that strips spaces": lambda path: write_sentencepiece(
        path, LLAMA | {"remove_extra_whitespaces": True}),
    "sentencepiece that strips spaces, not legacy": lambda path: write_sentencepiece(
        path, LLAMA | {"remove_extra_whitespaces": True}, legacy=False),
    "sentencepiece with symbols that strips spaces": lambda path: write_sentencepiece(
        path, LLAMA | {"user_defined_symbols": "<sep>,[X]", "remove_extra_whitespaces": True}),
    "sentencepiece with symbols that strips spaces, without prefix": lambda path: write_sentencepiece(
        path, UNIGRAM | {"user_defined_symbols": "<sep>,[X]", "remove_extra_whitespaces": True,
                         "add_dummy_prefix": False}),
    "sentencepiece, unigram that lacks <, 4, A and E": lambda path: write_sentencepiece(
        path, UNIGRAM | {"without": "<4AE"}),
    "sentencepiece, unigram that lacks <, 4, A and E, not legacy": lambda path: write_sentencepiece(
        path, UNIGRAM | {"without": "<4AE"}, legacy=False),
    "sentencepiece of an unknown class": lambda path: write_sentencepiece(
        path, LLAMA, tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": ["code.OwnTokenizer", None]}),
    "sentencepiece as spiece.model": lambda path: write_sentencepiece(
        path, UNIGRAM, "spiece.model", tokenizer_class="T5Tokenizer"),
    "sentencepiece beside other files": lambda path: (
        (path / "vocab.json").write_text("{}"), write_sentencepiece(path, LLAMA))[1],
    "tiktoken as tokenizer.model": write_tiktoken,
    "tiktoken as tiktoken.model": lambda path: write_tiktoken(path, "tiktoken.model"),
    "tiktoken of Qwen 1": lambda path: write_tiktoken(path, "qwen.tiktoken", QWEN, **QWEN_1),
    "tiktoken under another name": lambda path: write_tiktoken(path, "own.tiktoken", LLAMA3),
}  # fmt: skip


QUICK = (
    "vocab.json and merges.txt of Qwen2", "sentencepiece, unigram", "tiktoken as tokenizer.model",
    "sentencepiece with symbols that strips spaces", "sentencepiece, unigram that lacks <, 4, A and E",
)  # fmt: skip


@pytest.mark.parametrize("kind", marked(FORMATS, quick=QUICK))
def test_ids_are_those_of_an_independent_reading_of_the_files(kind: str, tmp_path: Path) -> None:
    """The text of special tokens is ordinary text, and a template writes the tokens."""
    reference = FORMATS[kind](tmp_path)
    special = "</s>" if kind.startswith("sentencepiece") else SPECIALS[2]
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}" + special)
    tokenizer = Tokenizer(tmp_path)
    texts = random_texts()
    assert len(texts) == 2000
    texts += ("<0x41>", "a<0xE5>", *(f"{start}{symbol}{text}" for text in texts[:100] for symbol in ("<sep>", "[X]")
                                     for start in ("", " ", "  ", "x ")))  # fmt: skip
    assert [text for text in texts if tokenizer.encode(text) != reference(text)] == []
    number = tokenizer.token_id(special)
    assert number is not None
    ordinary = tokenizer.encode(f"a{special}b")
    assert number not in ordinary
    assert tokenizer.encode_chat([{"role": "user", "content": f"a{special}b"}]) == [*ordinary, number]
    for text in ("a quick  fox", "naïve 東京 😀\n", "def f(x):\n\treturn") if "strips" not in kind else ():
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.matrix
def test_normalization_rules_of_sentencepiece_are_applied(tmp_path: Path) -> None:
    for model_type in ("bpe", "unigram"):
        reference = write_sentencepiece(tmp_path, DEFAULT_RULES | {"model_type": model_type})
        tokenizer = Tokenizer(tmp_path)
        # The tokenizers library applies rules to a base and its combining marks as one: see
        # docs/models/index.md#tokenizers.
        texts = [text for text in random_texts() if not any(unicodedata.category(char)[0] == "M" for char in text)]
        assert len(texts) > 1000
        assert [text for text in texts if tokenizer.encode(text) != reference(text)] == []


def test_line_endings_and_byte_order_marks_do_not_change_a_tokenizer(tmp_path: Path) -> None:
    write_bpe(tmp_path)
    texts = random_texts()[:200]
    expected = [Tokenizer(tmp_path).encode(text) for text in texts]
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    merges = tmp_path / "merges.txt"
    merges.write_bytes(merges.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\n")
    tokenizer = Tokenizer(tmp_path)
    assert [tokenizer.encode(text) for text in texts] == expected


def test_added_tokens_keep_the_ids_that_are_declared_for_them(tmp_path: Path) -> None:
    write_bpe(tmp_path)
    size = len(json.loads((tmp_path / "vocab.json").read_text()))
    numbers = {"<|a|>": size + 7, "<|b|>": size, "plain": size + 3}
    (tmp_path / "added_tokens.json").write_text(json.dumps(numbers))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|a|>"}}))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer", "unk_token": "<|b|>"}')
    tokenizer = Tokenizer(tmp_path)
    assert {text: tokenizer.token_id(text) for text in numbers} == numbers
    assert tokenizer.control_id("<|a|>") == size + 7
    assert tokenizer.control_id("plain") is None
    assert tokenizer.encode("plain") == [size + 3]


ADDED = ("<|im_start|>", "<|im_end|>", "<tool>", "plain")


def in_sections(reference: Encoder, text: str, ids: Mapping[str, int]) -> list[int]:
    """Returns ids as the slow Llama class with `legacy` behavior: added tokens are found first, and the text between
    two of them is encoded alone.
    """
    sections = re.split(f"({'|'.join(map(re.escape, ids))})", text)
    return [number for section in sections for number in ([ids[section]] if section in ids else reference(section))]


def write_added(directory: Path, options: Mapping[str, Any], declared: bool, **config: Any) -> tuple[Encoder, Any]:
    """Writes a Llama tokenizer and the tokens ADDED, which no file calls special.

    Returns its encoder, and the ids of these and of the control tokens.

    Args:
        declared: They are in `added_tokens_decoder`, normalized, instead of `added_tokens.json`.
    """
    size = SentencePieceProcessor(model_proto=sentencepiece_model(**options)).get_piece_size()
    ids = {text: size + number for number, text in enumerate(ADDED)}
    if declared:
        tokens = {str(number): {"content": text, "normalized": True} for text, number in ids.items()}
        config |= {"added_tokens_decoder": tokens}
    else:
        (directory / "added_tokens.json").write_text(json.dumps(ids))
    return write_sentencepiece(directory, options, **config), ids | {"<unk>": 0, "<s>": 1, "</s>": 2}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("strips", marked([False, True], quick=[False]))
@pytest.mark.parametrize("config", marked([{}, {"legacy": True}], quick=[{}]))
def test_added_tokens_that_no_file_calls_special(
    declared: bool, strips: bool, config: dict[str, Any], tmp_path: Path
) -> None:
    reference, ids = write_added(tmp_path, LLAMA | {"remove_extra_whitespaces": strips}, declared, **config)
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer(tmp_path)
    source = random.Random(5)
    words = [*ADDED, " ", "  ", "\n", "the", *(text[:8] for text in random_texts()[:40])]
    texts = ["ab<tool>ab", "ab\n<tool><tool>", *("".join(source.choices(words, k=6)) for _ in range(500))]
    wrong = [t for t in texts if tokenizer.encode_limited(t, 999, parse_special=True) != in_sections(reference, t, ids)]
    assert wrong == []
    for text in texts[:20]:
        chat = f"<|im_start|>user\n{text}<|im_end|>\n"
        found = tokenizer.encode_chat([{"role": "user", "content": text}])
        if "<|" not in text:  # of a user, it is text
            assert found == in_sections(reference, chat, ids)
        assert (found[0], found.count(ids["<|im_end|>"])) == (ids["<|im_start|>"], 1)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ messages[0].content }}<|im_{{ 'end' }}|>", "concatenates special tokens from parts"),
        (
            "{{ messages[0].content }}<|im_end|>",
            r"ids of the chat template's text lack some of the tokens '<\|im_end\|>'",
        ),
    ],
)
def test_the_reason_why_a_template_does_not_write_its_tokens(template: str, sentence: str, tmp_path: Path) -> None:
    """The prefix of a published tokenizer.json is also added to its normalized tokens."""
    write_added(tmp_path, LLAMA, declared=False)
    data = tokenizer_json.read_tokenizer(tmp_path)
    assert data is not None
    normalized = "parts" not in sentence
    tokens = [token | {"normalized": normalized, "special": not normalized} for token in data["added_tokens"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data | {"added_tokens": tokens}))
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match=sentence):
        Tokenizer(tmp_path)


REMEDY = ", and vocab.json and merges.txt do not state how text is split; name a class of transformers as"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an unknown class with vocab.json": (
        lambda path: write_bpe(path, "OwnTokenizer", auto_map={"AutoTokenizer": ["code.OwnTokenizer", None]}),
        f"its class 'OwnTokenizer' is not known{REMEDY}",
    ),
    "no class": (
        lambda path: (write_bpe(path), (path / "tokenizer_config.json").write_text("{}")),
        f"its class is not named{REMEDY}",
    ),
    "an unknown class with tiktoken": (
        lambda path: write_tiktoken(path, tokenizer_class="Own", auto_map={"AutoTokenizer": "code.Own"}),
        "does not state how text is split",
    ),
    "vocab.json alone": (lambda path: (write_bpe(path), (path / "merges.txt").unlink()), "merges.txt is missing"),
    "a damaged vocab.json": (lambda path: (write_bpe(path), (path / "vocab.json").write_text("{")), "vocab.json"),
    "merges that make no token": (
        lambda path: (write_bpe(path), (path / "merges.txt").write_text("zz qq\n")),
        "out of vocabulary",
    ),
    "a damaged model": (
        lambda path: (write_sentencepiece(path, LLAMA), (path / "tokenizer.model").write_bytes(b"\x00not a model")),
        "neither a sentencepiece model nor a tiktoken file",
    ),
    "a sentencepiece model of words": (
        lambda path: write_sentencepiece(path, {"model_type": "word"}),
        "neither of type unigram nor of type bpe",
    ),
    "a sentencepiece model with spaces at the end": (
        lambda path: write_sentencepiece(path, {"model_type": "unigram", "treat_whitespace_as_suffix": True}),
        "adds a space to the end of a text (treat_whitespace_as_suffix)",
    ),
    "tiktoken without some bytes": (
        lambda path: (path / "tokenizer.model").write_text("YQ== 0\nYg== 1\n"),
        "lacks 254 of the 256 single bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", marked(REFUSED, quick=["an unknown class with vocab.json", "a damaged model"]))
def test_errors_of_the_conversion_name_the_remedy(case: str, tmp_path: Path) -> None:
    breaks, reason = REFUSED[case]
    breaks(tmp_path)
    with pytest.raises(ConfigError, match="cannot be converted") as caught:
        Tokenizer(tmp_path)
    message = str(caught.value)
    assert reason in message
    assert str(tmp_path) in message
    assert "make tokenizer.json" in message
    assert "\n" not in message


def test_no_code_of_the_repository_runs(tmp_path: Path) -> None:
    write_bpe(tmp_path, "DreamTokenizer", **DREAM)
    evidence = tmp_path / "evidence"
    for name in ("tokenization_dream.py", "sitecustomize.py", "transformers.py", "vocab.py"):
        (tmp_path / name).write_text(f"open({str(evidence)!r}, 'w').close()\n")
    Tokenizer(tmp_path)
    assert not evidence.exists()


@pytest.mark.matrix
def test_a_config_cannot_name_files_outside_the_checkpoint(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    for path in (outside, inside):
        path.mkdir()
        write_bpe(path, size=400 if path is outside else 500)
    expected = Tokenizer(inside).encode("the quick brown fox")
    config = {"tokenizer_class": "Qwen2Tokenizer", "vocab_file": str(outside / "vocab.json")}
    config |= {"merges_file": str(outside / "merges.txt"), "tokenizer_file": str(outside / "tokenizer.json")}
    (inside / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer(inside).encode("the quick brown fox") == expected
    (inside / "merges.txt").unlink()
    (inside / "merges.txt").symlink_to(outside / "merges.txt")
    with pytest.raises(ConfigError, match="leads out of the checkpoint"):
        Tokenizer(inside)


@pytest.mark.matrix
def test_a_config_of_a_sentencepiece_model_names_no_files_either(tmp_path: Path) -> None:
    outside, inside, alone = tmp_path / "outside", tmp_path / "inside", tmp_path / "alone"
    for path in (outside, inside, alone):
        path.mkdir()
    write_bpe(outside)
    (outside / "tokenizer.json").write_text(json.dumps(tokenizer_json.converted(outside, ["vocab.json", "merges.txt"])))
    names = {"tokenizer_file": str(outside / "tokenizer.json"), "name_or_path": str(outside)}
    write_sentencepiece(alone, UNIGRAM, "spiece.model", tokenizer_class="BigBirdTokenizer")
    write_sentencepiece(inside, UNIGRAM, "spiece.model", tokenizer_class="BigBirdTokenizer", **names)
    expected = tokenizer_json.converted(alone, ["spiece.model"])
    assert expected["model"]["type"] == "Unigram"
    assert tokenizer_json.converted(inside, ["spiece.model"]) == expected


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Returns a list that gets the directory of each checkpoint that is converted."""
    found: list[Path] = []
    run = tokenizer_json._run

    def counted(directory: Path, inputs: Any) -> str:
        found.append(directory)
        return run(directory, inputs)

    monkeypatch.setattr(tokenizer_json, "_run", counted)
    return found


@pytest.mark.matrix
def test_a_result_is_cached_by_the_content_of_its_files(tmp_path: Path, cache: Path, conversions: list[Path]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.mkdir()
        write_bpe(path)
        assert Tokenizer(path).encode("the fox")
    assert conversions == [first]
    (entry,) = cache.glob("*.json")
    assert json.loads(entry.read_text(encoding="utf-8"))["model"]["type"] == "BPE"
    write_bpe(second, size=700)
    Tokenizer(second)
    assert conversions == [first, second]
    (second / "special_tokens_map.json").unlink()
    Tokenizer(second)
    assert conversions == [first, second, second]
    assert not list(cache.glob(".*"))


@pytest.mark.matrix
def test_a_damaged_or_foreign_cache_entry_is_replaced(tmp_path: Path, cache: Path, conversions: list[Path]) -> None:
    write_bpe(tmp_path)
    expected = Tokenizer(tmp_path).encode("the fox")
    (entry,) = cache.glob("*.json")
    entry.write_text('{"half": ')
    assert Tokenizer(tmp_path).encode("the fox") == expected
    entry.unlink()
    entry.symlink_to("/proc/self/environ")
    assert Tokenizer(tmp_path).encode("the fox") == expected
    assert len(conversions) == 3
    assert not entry.is_symlink()
    Tokenizer(tmp_path)
    assert len(conversions) == 3


def test_without_a_writable_cache_a_temporary_file_serves_the_process(tmp_path: Path, cache: Path) -> None:
    write_bpe(tmp_path)
    cache.parent.mkdir()
    cache.write_text("a file where the directory belongs")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = LOAD + (
        "import os\n"
        "from runtime.weights import tokenizer_json\n"
        "tokenizer_json._run = None\n"
        "assert Tokenizer(sys.argv[1]).encode('the fox') == tokenizer.encode('the fox')\n"
        "print(os.environ[tokenizer_json.TEMPORARY_VARIABLE], *os.listdir(os.environ['TMPDIR']))\n"
    )
    directory, *entries = python(script, tmp_path, TMPDIR=str(temporary))
    assert [Path(directory).name] == entries  # the workspace of the conversion is gone
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("anywhere", [False, True])
def test_without_space_a_temporary_file_or_nothing_is_stored(
    anywhere: bool, tmp_path: Path, cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The lock file can be created, but the write of the result fails."""
    write_bpe(tmp_path)
    temporary, replace = tmp_path / "temporary", tokenizer_json._replace
    monkeypatch.setenv(tokenizer_json.TEMPORARY_VARIABLE, str(temporary))

    def without_space(target: Path, text: str) -> None:
        if anywhere or target.parent == cache:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(target, text)

    monkeypatch.setattr(tokenizer_json, "_replace", without_space)
    assert Tokenizer(tmp_path).encode("the fox") == Tokenizer(tmp_path).encode("the fox")
    assert len(conversions) == (2 if anywhere else 1)
    assert list(cache.glob("*.json")) == []
    assert len(list(temporary.glob("*.json"))) == (not anywhere)
    assert ("converted tokenizer not stored" in caplog.text) == anywhere


def test_without_any_writable_directory_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bpe(tmp_path)

    def fails(*_: object, **__: object) -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.mkdtemp", fails)
    with pytest.raises(ConfigError, match=r"none can be written; set TMPDIR to one, or make tokenizer\.json"):
        Tokenizer(tmp_path)


@pytest.mark.matrix
def test_processes_that_start_together_convert_once(tmp_path: Path, cache: Path) -> None:
    write_bpe(tmp_path)
    command = [sys.executable, "-c", LOAD + "print(tokenizer.encode('the quick fox'))", str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    (output,) = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert "[" in output
    assert len(list(cache.glob("*.json"))) == 1


@pytest.mark.matrix
def test_threads_of_a_process_convert_once(tmp_path: Path, conversions: list[Path]) -> None:
    write_bpe(tmp_path)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(Tokenizer, [tmp_path] * 3))
    assert conversions == [tmp_path]


@pytest.mark.parametrize("limit", ["ADDRESS_SPACE", "CPU_SECONDS"])
def test_the_conversion_is_limited(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bpe(tmp_path)
    value = {"ADDRESS_SPACE": 64 << 20, "CPU_SECONDS": 0}[limit]
    hook = tmp_path / "hook"
    hook.mkdir()
    # The import of transformers exceeds this limit, as a huge vocabulary would exceed the real one.
    text = f"from runtime.weights import tokenizer_conversion\ntokenizer_conversion.{limit} = {value}\n"
    runner = f"{text}import sys\nfrom pathlib import Path\nsys.exit(tokenizer_conversion.main(Path(sys.argv[-1])))\n"
    (hook / "limited.py").write_text(runner)
    run = subprocess.run

    def limited(command: list[str], **options: Any) -> Any:
        return run([sys.executable, str(hook / "limited.py"), command[-1]], **options)

    monkeypatch.setattr("runtime.weights.tokenizer_json.subprocess.run", limited)
    with pytest.raises(ConfigError, match="cannot be converted"):
        Tokenizer(tmp_path)


def test_the_converting_process_gets_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[Mapping[str, str]] = []

    def run(command: list[str], *, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        environments.append(env)
        return subprocess.CompletedProcess(command, 1)

    write_bpe(tmp_path)
    for name in ("UNMASK_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret-0123456789")
    monkeypatch.setattr("runtime.weights.tokenizer_json.subprocess.run", run)
    with pytest.raises(ConfigError, match="cannot be converted"):
        Tokenizer(tmp_path)
    assert "secret-0123456789" not in environments[0].values()


def test_a_conversion_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bpe(tmp_path)
    monkeypatch.setattr(tokenizer_json, "CONVERSION_SECONDS", 1e-3)
    with pytest.raises(ConfigError, match=r"the conversion took more than 0\.001 s"):
        Tokenizer(tmp_path)


# The import of transformers never ends.
STUCK = """
import os, sys, time
class Stuck:
    def find_spec(self, name, path=None, target=None):
        if name == "transformers":
            print("stuck", file=open(os.environ["EVIDENCE"], "w"), flush=True)
            time.sleep(3600)
sys.meta_path.insert(0, Stuck())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_a_conversion_ends_with_its_server_and_uses_its_directory(tmp_path: Path) -> None:
    write_bpe(tmp_path)
    hook, temporary, own, evidence = (tmp_path / name for name in ("hook", "temporary", "own", "evidence"))
    for path in (hook, temporary):
        path.mkdir()
    (hook / "sitecustomize.py").write_text(STUCK)
    paths = [str(hook), ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "EVIDENCE": str(evidence), "TMPDIR": str(temporary)}
    env[tokenizer_json.TEMPORARY_VARIABLE] = str(own)
    with subprocess.Popen([sys.executable, "-c", LOAD, str(tmp_path)], cwd=ROOT, env=env) as server:
        try:
            wait_until(evidence.exists)
            (child,) = psutil.Process(server.pid).children()
            workspaces = [path.name.partition("-conversion-")[0] for path in own.glob("*")]
        finally:
            server.terminate()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, ignore=psutil.NoSuchProcess)
    assert workspaces == ["unmask"]
    assert list(temporary.iterdir()) == []


def test_the_server_process_imports_no_transformers_and_the_converting_one_no_torch(tmp_path: Path) -> None:
    write_bpe(tmp_path)
    modules = set(python(LOAD + "print(*sys.modules)", tmp_path))
    assert "tokenizers" in modules
    assert not modules & {"transformers", "torch", "sentencepiece", "tiktoken", "google.protobuf"}
    inputs = tmp_path / "workspace" / "inputs"
    inputs.mkdir(parents=True)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (inputs / name).write_bytes((tmp_path / name).read_bytes())
    script = (
        "import sys\nfrom pathlib import Path\nfrom runtime.weights import tokenizer_conversion\n"
        "print(tokenizer_conversion.main(Path(sys.argv[1])), *(n for n, m in sys.modules.items() if m))\n"
    )
    code, *names = python(script, inputs.parent)
    assert code == "0"
    assert "transformers" in names
    assert not {"torch", "tensorflow", "jax"} & set(names)


def _named_specials(directory: Path, **config: Any) -> None:
    """Writes a Llama tokenizer with special tokens behind its pieces."""
    write_sentencepiece(directory, LLAMA)
    size = 1 + max(Tokenizer(directory).token_id(piece) or 0 for piece in ("<unk>", "</s>", *_pieces(directory)))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    texts = {0: "<unk>", 1: "<s>", 2: "</s>"} | {size + n: text for n, text in enumerate(SPECIALS)}
    added = {str(number): {"content": text, **flags} for number, text in texts.items()}
    config |= {"additional_special_tokens": list(SPECIALS), "added_tokens_decoder": added}
    write_sentencepiece(directory, LLAMA, **config)


def _pieces(directory: Path) -> Iterator[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(**LLAMA))
    yield from (processor.id_to_piece(number) for number in range(processor.get_piece_size()))


SLOW: dict[str, tuple[str, Callable[[Path], object]]] = {
    "Qwen2": ("Qwen2Tokenizer", lambda path: write_bpe(path)),
    "GPT-2": ("GPT2Tokenizer", lambda path: write_bpe(path, "GPT2Tokenizer", GPT2)),
    "Llama": ("LlamaTokenizer", lambda path: _named_specials(path)),
    "Llama, legacy": ("LlamaTokenizer", lambda path: _named_specials(path, legacy=True)),
    "Llama, not legacy": ("LlamaTokenizer", lambda path: _named_specials(path, legacy=False)),
    "Llama without prefix": ("LlamaTokenizer",
                             lambda path: _named_specials(path, legacy=False, add_prefix_space=False)),
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %} <|endoftext|> x"


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_ids_are_those_of_the_slow_classes_of_transformers_4(kind: str, tmp_path: Path) -> None:
    """The environment is made from transformers4/lock.txt, which `tests.clients.environments.lock` resolves."""
    python = environment(client(FOLDER)) / "venv" / "bin" / "python"
    name, write = SLOW[kind]
    write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.chat_template == TEMPLATE
    chats = [[{"role": "user", "content": text}] for text in ("hi there", " a", "b ", "x\n\n", "", "東京 😀")]
    marked = [TEMPLATE_TEXT.format(chat[0]["content"]) for chat in chats]
    texts = random_texts()
    (tmp_path / "chat_template.jinja").unlink()
    request = {"directory": str(tmp_path), "tokenizer_class": name, "texts": texts, "marked": marked}
    done = subprocess.run(
        [str(python), str(FOLDER / "reference.py")], input=json.dumps(request), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    expected = json.loads(done.stdout)
    wrong = [t for t, ids in zip(texts, expected["texts"], strict=True) if tokenizer.encode(t) != ids]
    assert wrong == []
    assert [tokenizer.encode_chat(chat) for chat in chats] == expected["marked"]


TEMPLATE_TEXT = "<|im_start|>user\n{}<|im_end|>\n <|endoftext|> x"
