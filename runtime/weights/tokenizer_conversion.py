"""``python -m runtime.weights.tokenizer_conversion WORKSPACE``: converts a tokenizer to ``tokenizer.json``.

It reads WORKSPACE/inputs and writes WORKSPACE/tokenizer.json, or WORKSPACE/reason with one phrase. Only this module
imports transformers, without torch, which would multiply its memory by ten. No code of a checkpoint runs: the name of a
checkpoint's own class selects the published class that it derives from.

Byte-level BPE files are loaded by transformers' class, tiktoken files by its converter. A sentencepiece model states
its normalization itself, and transformers 5 ignores parts of it. Therefore the tokenizer is assembled from the model
here. The ids of sample texts are compared with those of sentencepiece and tiktoken.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.child_process import exit_with_parent
from runtime.errors import ConfigError
from runtime.weights.tokenizer_json import (
    ADDED_FILE,
    BPE_FILES,
    CONFIG_FILE,
    FILE,
    NAMED_TOKENS,
    SENTENCEPIECE_FILES,
    SPACE,
    SPECIAL_FILE,
    SPECIAL_LISTS,
    TIKTOKEN_FILE,
    TIKTOKEN_SUFFIX,
    TOKEN_FLAGS,
    TRAILING_SPACES,
    Prefix,
    added_token,
    declared_tokens,
    listed_tokens,
    token_text,
    with_new_names,
)

CPU_SECONDS = 600
ADDRESS_SPACE = 8 << 30  # bytes; a vocabulary of 256,000 tokens takes less than an eighth
HIDDEN = ("torch", "tensorflow", "jax", "flax")  # frameworks that transformers would import

# Classes that repositories define themselves, and the class of transformers with the same tokenization.
REMOTE_CLASSES = {"DreamTokenizer": "Qwen2Tokenizer", "DiffuCoderTokenizer": "Qwen2Tokenizer"}
# The class of a family's tokenizer, by `model_type`, where the checkpoint names no class that transformers has.
FAMILY_CLASSES = {"gpt2": "GPT2Tokenizer"} | dict.fromkeys(
    ("Dream", "Fast_dLLM_Qwen", "sdar", "sdar_moe", "qwen2", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"
)
GENERIC_CLASSES = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "SentencePieceBackend"}
# Classes that load vocab.json and merges.txt.
BYTE_LEVEL_CLASSES = {
    "Qwen2Tokenizer", "GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "CodeGenTokenizer", "LEDTokenizer",
    "LongformerTokenizer", "BlenderbotTokenizer", "DebertaTokenizer",
}  # fmt: skip
# Classes whose ids are those of the sentencepiece model.
MODEL_ID_CLASSES = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "T5Tokenizer", "Phi3Tokenizer"}
# Splitting patterns of tiktoken files, by the checkpoint's class; the file itself does not contain one.
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEFAULT_PATTERN = _WORD + r"\p{N}{1,3}" + _REST  # Llama 3's and cl100k_base's
PATTERNS = {"QWenTokenizer": _WORD + r"\p{N}" + _REST, "ChatGLM4Tokenizer": DEFAULT_PATTERN}

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of sentencepiece's pieces
UNIGRAM, BPE = 1, 2  # types of sentencepiece's models

SAMPLES = (
    "Hello, world! It's 12,345.67 today.",
    "  leading and   inner  spaces ",
    "def f(x):\n    return x ** 2  # 注释\n",
    "naïve café – Ünïcödé ÀÉÎ",
    "Привет, мир! Ελληνικά. שלום. مرحبا. नमस्ते. สวัสดี. 한국어. 日本語の文。",
    "😀👍🏽 👩‍💻 ∑∫√ €£¥",
    "\t\ttabs\r\nand\r\nlines\n\n\n",
    "a",
    "",
    "<s></s><unk><0x41>",
)

log = logging.getLogger(__name__)


class Unconvertible(Exception):
    """Why a tokenizer cannot be converted, as a phrase."""


def main(workspace: Path) -> int:
    """Converts the tokenizer in `workspace`; returns the exit code."""
    exit_with_parent()
    _limit()
    for name in HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        data = convert(workspace / "inputs")
    except (Unconvertible, ConfigError) as error:
        reason = str(error)
    except MemoryError:
        reason = f"it takes more than {ADDRESS_SPACE >> 30} GiB of memory"
    except Exception as error:  # the libraries raise many kinds for damaged files
        log.exception("the conversion failed")
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    else:
        (workspace / FILE).write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
        return 0
    (workspace / "reason").write_text(reason, encoding="utf-8")
    return 1


def _limit() -> None:
    limits = ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, ADDRESS_SPACE), (resource.RLIMIT_CORE, 0))
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        if hard == resource.RLIM_INFINITY or value < hard:
            resource.setrlimit(kind, (value, value))


def convert(directory: Path) -> dict[str, Any]:
    """Returns the content of tokenizer.json for the files in `directory`. Raises Unconvertible."""
    settings = _Settings(directory)
    names = {path.name for path in directory.iterdir()}
    model = next((name for name in SENTENCEPIECE_FILES if name in names), None)
    ranks = TIKTOKEN_FILE if TIKTOKEN_FILE in names else None
    ranks = ranks or next((name for name in sorted(names) if name.endswith(TIKTOKEN_SUFFIX)), None)
    if model is not None and ranks is None and _is_tiktoken(directory / model):
        model, ranks = None, model
    has_bpe = names.issuperset(BPE_FILES)
    prefers_bpe = settings.published in BYTE_LEVEL_CLASSES
    if has_bpe and (prefers_bpe or (model is None and ranks is None)):
        data = _from_bpe(directory, settings)
    elif model is not None:
        data = _from_sentencepiece(directory, model, settings)
    elif ranks is not None:
        data = _from_tiktoken(directory / ranks, settings)
    else:
        missing = [name for name in BPE_FILES if name not in names]
        raise Unconvertible(f"{' and '.join(missing)} is missing")
    data |= {"truncation": None, "padding": None}
    _require_ids(data, settings.added)
    return data


class _Settings:
    """Declarations of the files next to a vocabulary.

    Attributes:
        config: tokenizer_config.json, {} without one.
        own_class: The class that the checkpoint names, without the suffix Fast; "" if it names none.
        is_remote: Whether that class is code of the repository.
        published: The class of transformers to use; "" if none is known.
        added: Id -> added token, as in tokenizer.json.
    """

    def __init__(self, directory: Path) -> None:
        self.config = _object(directory / CONFIG_FILE)
        self.special_map = _object(directory / SPECIAL_FILE)
        self.model_type = _object(directory / "config.json").get("model_type")
        automatic = self.config.get("auto_map")
        if isinstance(automatic, Mapping):
            automatic = automatic.get("AutoTokenizer")
        entries = automatic if isinstance(automatic, list) else [automatic]
        remote = next((str(entry).rpartition(".")[2] for entry in entries if entry), "")
        self.own_class = str(self.config.get("tokenizer_class") or remote).removesuffix("Fast")
        self.is_remote = bool(remote)
        self.published = self._published_class()
        self.added = self._added_tokens(_object(directory / ADDED_FILE))

    def _published_class(self) -> str:
        known = REMOTE_CLASSES.get(self.own_class, self.own_class)
        if known and known not in GENERIC_CLASSES and _class(known) is not None:
            return known
        return FAMILY_CLASSES.get(str(self.model_type), "")

    @property
    def merged(self) -> dict[str, Any]:
        """tokenizer_config.json, completed from special_tokens_map.json, with tokens as texts."""
        found: dict[str, Any] = dict(self.config)
        found |= {key: value for key, value in self.special_map.items() if found.get(key) is None}
        for key, value in found.items():
            if key.endswith("_token"):
                found[key] = token_text(value)
            elif key in SPECIAL_LISTS:
                found[key] = listed_tokens(found, key)
        return found

    @property
    def specials(self) -> list[str]:
        """Texts of the tokens that the files declare special, in the order in which transformers adds them."""
        merged = self.merged
        names = [*NAMED_TOKENS, *sorted(key for key in merged if key.endswith("_token") and key not in NAMED_TOKENS)]
        texts = [merged[name] for name in names if merged.get(name) is not None]
        return list(dict.fromkeys([*texts, *(text for key in SPECIAL_LISTS for text in merged.get(key) or ())]))

    def _added_tokens(self, numbers: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """Returns `added_tokens_decoder` of the config, else `added_tokens.json`."""
        if declared := declared_tokens(self.config, CONFIG_FILE):
            return declared
        specials, found = set(self.specials), {}
        for text, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise Unconvertible(f"{ADDED_FILE}: the id of {text!r} is {number!r}, not an id")
            special = text in specials
            flags = dict.fromkeys(TOKEN_FLAGS, False) | {"normalized": not special, "special": special}
            found[number] = {"content": text, **flags}
        return found


def _object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise Unconvertible(f"{path.name} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unconvertible(f"{path.name} must hold a JSON object")
    return value


def _class(name: str) -> Any:
    """Returns transformers' tokenizer class of that name, or None."""
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    try:
        return tokenizer_class_from_name(name)
    except Exception:  # an attribute of the package that is not importable
        return None


def _from_bpe(directory: Path, settings: _Settings) -> dict[str, Any]:
    """Converts vocab.json, merges.txt and added_tokens.json with transformers' class."""
    if settings.published not in BYTE_LEVEL_CLASSES:
        kind = f"its class {settings.own_class!r} is not known" if settings.own_class else "its class is not named"
        raise Unconvertible(
            f"{kind}, and vocab.json and merges.txt do not state how text is split; name a class of transformers as "
            "tokenizer_class in tokenizer_config.json"
        )
    vocabulary = _object(directory / "vocab.json")
    data = _by_transformers(directory, settings)
    if any(data["model"]["vocab"].get(text) != number for text, number in vocabulary.items()):
        raise Unconvertible("transformers changed ids of vocab.json")
    return data


def _by_transformers(directory: Path, settings: _Settings) -> dict[str, Any]:
    """Loads `directory` with the published class of transformers, after replacing its settings by loadable ones."""
    added = {str(number): token for number, token in settings.added.items()}
    (directory / CONFIG_FILE).write_text(json.dumps(_loadable(settings) | {"added_tokens_decoder": added}))
    for name in (SPECIAL_FILE, ADDED_FILE, "config.json"):  # merged into the config
        (directory / name).unlink(missing_ok=True)
    loaded = _class(settings.published).from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    data: dict[str, Any] = json.loads(loaded.backend_tokenizer.to_str())
    return data


def _loadable(settings: _Settings) -> dict[str, Any]:
    """Returns tokenizer_config.json for transformers, completed, and without names of files or code."""
    dropped = {"auto_map", "tokenizer_class", "chat_template", "added_tokens_decoder", "name_or_path", "init_inputs"}
    return {k: v for k, v in settings.merged.items() if k not in dropped and not k.endswith("_file")}


def _is_tiktoken(path: Path) -> bool:
    """Returns whether a file consists of lines `base64 rank`, as tiktoken's do."""
    with path.open("rb") as file:
        first = file.readline(4096).split()
    try:
        return len(first) == 2 and first[1].isdigit() and bool(base64.b64decode(first[0], validate=True))
    except binascii.Error:
        return False


def _from_tiktoken(path: Path, settings: _Settings) -> dict[str, Any]:
    """Converts a tiktoken file with transformers' converter."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from transformers.convert_slow_tokenizer import TikTokenConverter

    if settings.is_remote and settings.own_class not in PATTERNS and _class(settings.own_class) is None:
        raise Unconvertible(
            f"{path.name} does not state how text is split, and the repository's class {settings.own_class!r}, which "
            "does, is not known"
        )
    pattern = PATTERNS.get(settings.own_class, DEFAULT_PATTERN)
    ranks = load_tiktoken_bpe(str(path))
    if missing := 256 - sum(bytes([byte]) in ranks for byte in range(256)):
        raise Unconvertible(f"{path.name} lacks {missing} of the 256 single bytes")
    converter = TikTokenConverter(vocab_file=str(path), pattern=pattern)  # type: ignore[no-untyped-call]
    data: dict[str, Any] = json.loads(converter.converted().to_str())
    _add_tokens(data, settings, first=max(ranks.values()) + 1)
    original = tiktoken.Encoding("checkpoint", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    _compare(data, {text: original.encode_ordinary(text) for text in SAMPLES}, "tiktoken")
    return data


def _add_tokens(data: dict[str, Any], settings: _Settings, first: int) -> None:
    """Adds the declared tokens with their ids, then special tokens without one from id `first` on."""
    vocabulary = data["model"]["vocab"]
    added = {token["id"]: token for token in data.get("added_tokens") or []}
    # Slow classes find declared tokens verbatim. A normalizer would change normalized ones, or prepend a space.
    added |= {number: {"id": number, **token, "normalized": False} for number, token in settings.added.items()}
    texts = {token["content"] for token in added.values()}
    number = max([first - 1, *added]) + 1
    for text in settings.specials:
        if text in texts:
            continue
        known = vocabulary.get(text) if isinstance(vocabulary, Mapping) else _index(vocabulary, text)
        if known is None:
            known, number = number, number + 1
        added[known] = added_token(known, text, special=True)
    data["added_tokens"] = [added[number] for number in sorted(added)]


def _index(vocabulary: Sequence[Sequence[Any]], text: str) -> int | None:
    return next((index for index, entry in enumerate(vocabulary) if entry[0] == text), None)


def _from_sentencepiece(directory: Path, name: str, settings: _Settings) -> dict[str, Any]:
    """Converts a sentencepiece model.

    If its ids are those of the tokenizer, tokenizer.json is assembled here, otherwise by transformers' class.
    """
    import sentencepiece
    from transformers.convert_slow_tokenizer import import_protobuf

    content = (directory / name).read_bytes()
    proto = import_protobuf().ModelProto()  # type: ignore[no-untyped-call]
    try:
        proto.ParseFromString(content)
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    except Exception as error:
        raise Unconvertible(f"{name} is neither a sentencepiece model nor a tiktoken file: {error}") from None
    if settings.published and settings.published not in MODEL_ID_CLASSES | BYTE_LEVEL_CLASSES:
        data = _by_transformers(directory, settings)
        if len(data["model"]["vocab"]) < len(proto.pieces):
            raise Unconvertible(f"transformers' {settings.published} does not load {name}")
        return data
    data = _assemble(proto, settings)
    _add_tokens(data, settings, first=len(proto.pieces))
    if _is_prefixed(proto, settings) == proto.normalizer_spec.add_dummy_prefix:
        _compare(data, {text: processor.encode(text) for text in SAMPLES}, "sentencepiece")
    return data


def _assemble(proto: Any, settings: _Settings) -> dict[str, Any]:
    """Returns the content of tokenizer.json for a sentencepiece model."""
    trainer, pieces = proto.trainer_spec, proto.pieces
    if trainer.model_type not in (UNIGRAM, BPE):
        raise Unconvertible("its sentencepiece model is neither of type unigram nor of type bpe")
    if any(piece.type == UNUSED for piece in pieces):
        raise Unconvertible("its sentencepiece model has unused pieces, which tokenizer.json cannot express")
    if trainer.treat_whitespace_as_suffix and _is_prefixed(proto, settings):
        raise Unconvertible("its sentencepiece model adds a space to the end of a text (treat_whitespace_as_suffix)")
    # Added tokens are found before spaces are replaced, so that a symbol of spaces has to be merged instead.
    symbols = {piece.piece for piece in pieces if piece.type == USER_DEFINED and SPACE not in piece.piece}
    fallback = any(piece.type == BYTE for piece in pieces)
    unknown = next((number for number, piece in enumerate(pieces) if piece.type == UNKNOWN), None)
    if unknown is None:
        raise Unconvertible("its sentencepiece model has no unknown token")
    added = [
        added_token(number, piece.piece, special=piece.type != USER_DEFINED)
        for number, piece in enumerate(pieces)
        if piece.type in (UNKNOWN, CONTROL) or piece.piece in symbols
    ]
    model: dict[str, Any]
    if trainer.model_type == BPE:
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces[unknown].piece,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": fallback,
            "ignore_merges": False,
            "vocab": {piece.piece: number for number, piece in enumerate(pieces)},
            "merges": _merges(pieces),
        }
    else:
        model = {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": fallback,
            "vocab": [[piece.piece, score] for piece, score in zip(pieces, _scores(pieces), strict=True)],
        }
    spec = proto.normalizer_spec
    if spec.remove_extra_whitespaces:  # spaces around symbols are kept, as these are found after normalization
        normalized = _charsmap(spec)
        for token in added:
            token["normalized"] = not token["special"] and normalized(token["content"]) == token["content"]
    prefixed = _is_prefixed(proto, settings)
    # Text after a special token gets the prefix too if the class has `legacy` behavior.
    everywhere = prefixed and not symbols and settings.config.get("legacy") is not False
    first = prefixed and not everywhere
    normalizers = _normalizers(spec, everywhere, first=first)
    splitters = (
        [{"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}] if first else []
    )
    if trainer.model_type == UNIGRAM and fallback:
        splitters += _split_byte_texts(pieces)
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    decoders += [{"type": "ByteFallback"}] if fallback else []
    decoders += [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitters} if splitters else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _is_prefixed(proto: Any, settings: _Settings) -> bool:
    """Returns whether a space is prepended to a text; classes without `legacy` behavior can disable it."""
    disabled = settings.config.get("legacy") is False and settings.config.get("add_prefix_space") is False
    return bool(proto.normalizer_spec.add_dummy_prefix) and not disabled


def _charsmap(spec: Any) -> Callable[[str], str]:
    """Returns the function that applies the character map of sentencepiece."""
    from tokenizers.normalizers import Precompiled

    charsmap = spec.precompiled_charsmap
    return Precompiled(charsmap).normalize_str if charsmap else lambda text: text


def _normalizers(spec: Any, everywhere: bool, *, first: bool) -> list[dict[str, Any]]:
    """Returns the normalizers of sentencepiece.

    Args:
        everywhere: Each section of a text gets a space.
        first: Only the first one, for which ``tokenizer_json.Prefix`` removes leading spaces.
    """
    found: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        found.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        if not first:
            found.append({"type": "Replace", "pattern": {"Regex": r"\A +"}, "content": ""})
        found.append({"type": "Replace", "pattern": TRAILING_SPACES, "content": ""})
        found.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if everywhere:
        found.append({"type": "Prepend", "prepend": SPACE})
    found.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return found


def _split_byte_texts(pieces: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns a pre-tokenizer that splits texts such as "<0x41>" at their unknown characters.

    The library's unigram model would take such a text for the byte, whose score is above that of an unknown character.
    No piece of the model contains an unknown character, so that nothing else changes.
    """
    known = {piece.piece for piece in pieces}
    digits = "".join(digit for digit in "0123456789ABCDEF" if digit not in known)
    patterns = [
        r"(?<=<0x[0-9A-F]{2})>" if ">" not in known else "",
        r"<(?=0x[0-9A-F]{2}>)" if "<" not in known else "",
        r"(?<=<)0(?=x[0-9A-F]{2}>)" if "0" not in known else "",
        r"(?<=<0)x(?=[0-9A-F]{2}>)" if "x" not in known else "",
        rf"(?<=<0x)[{digits}](?=[0-9A-F]>)|(?<=<0x[0-9A-F])[{digits}](?=>)" if digits else "",
    ]
    if not any(patterns):
        return []
    pattern = {"Regex": "|".join(filter(None, patterns))}
    return [{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}]


def _merges(pieces: Sequence[Any]) -> list[tuple[str, str]]:
    """Returns the merges of a BPE model, ordered by score: all splits of each piece into two pieces."""
    numbers = {piece.piece: number for number, piece in enumerate(pieces) if piece.type in (NORMAL, USER_DEFINED)}
    found = []
    for text, number in numbers.items():
        for cut in range(1, len(text)):
            left, right = numbers.get(text[:cut]), numbers.get(text[cut:])
            if left is not None and right is not None:
                last = pieces[number].type != USER_DEFINED
                found.append((last, -pieces[number].score, left, right, text[:cut], text[cut:]))
    return [(left, right) for *_, left, right in sorted(found)]


def _scores(pieces: Sequence[Any]) -> list[float]:
    """Returns the scores of a unigram model. Bytes and control tokens get a score too low to be chosen."""
    lowest = min((piece.score for piece in pieces if piece.type in (NORMAL, USER_DEFINED)), default=0.0)
    never = 32 * (lowest - 10.0)
    return [piece.score if piece.type in (NORMAL, USER_DEFINED) else never for piece in pieces]


def _require_ids(data: dict[str, Any], added: Mapping[int, Mapping[str, Any]]) -> None:
    """Gives each declared token its id: the library numbers tokens outside the vocabulary without gaps."""
    from tokenizers import Tokenizer

    data["added_tokens"] = sorted(
        ({**token, "id": number} for number, token in _by_id(data, added).items()), key=lambda token: token["id"]
    )
    numbers = {token["content"]: token["id"] for token in data["added_tokens"]}

    def misnumbered() -> dict[str, int]:
        library = Tokenizer.from_str(json.dumps(data))
        return {text: number for text, number in numbers.items() if library.token_to_id(text) != number}

    wrong, vocabulary = misnumbered(), data["model"]["vocab"]
    if wrong and isinstance(vocabulary, dict):
        for text, number in numbers.items():
            vocabulary.setdefault(text, number)
        wrong = misnumbered()
    for text, number in wrong.items():
        raise Unconvertible(f"the added token {text!r} cannot have the id {number}")


def _by_id(data: Mapping[str, Any], added: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Returns all added tokens by id; declared tokens have their declared ids."""
    declared = {token["content"]: number for number, token in added.items()}
    if len(declared) < len(added):
        raise Unconvertible("two ids of its added tokens have the same text")
    found: dict[int, Mapping[str, Any]] = {}
    for token in sorted(data["added_tokens"], key=lambda token: token["content"] not in declared):
        number = declared.get(token["content"], token["id"])
        found[number if number not in found else max(found) + 1] = token
    return found


def _compare(data: Mapping[str, Any], expected: Mapping[str, list[int]], library: str) -> None:
    """Raises Unconvertible if ids differ from those of the format's own library."""
    from tokenizers import Tokenizer

    # Text of special tokens is ordinary text for both libraries.
    special = [token["content"] for token in data["added_tokens"] if token["special"]]
    made = Tokenizer.from_str(
        json.dumps(with_new_names(data, {text: f"\ue000{n}\ue001" for n, text in enumerate(special)}))
    )
    prefix = Prefix.of(data, {})
    for text, ids in expected.items():
        if made.encode(prefix.add(text) if prefix else text, add_special_tokens=False).ids != ids:
            raise Unconvertible(f"its ids of {text!r} would differ from those of {library}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
