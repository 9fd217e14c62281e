"""The tokenizer of a checkpoint, read from its files without torch or transformers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from runtime.errors import ConfigError, RequestError
from runtime.request.validation import refuse
from runtime.tokenizer.byte_decoder import TokenByteDecoder
from runtime.tokenizer.chat_template import ChatTemplate
from runtime.tokenizer.marked_text import Marks, new_mark
from runtime.tokenizer.template_sandbox import Cancelled, RenderBudget
from runtime.weights import checkpoint_files, tokenizer_json

log = logging.getLogger(__name__)

TEMPLATE_FILES = {"default": "chat_template.jinja", "tool_use": "additional_chat_templates/tool_use.jinja"}
PROCESSOR_FILES = ("chat_template.json", "processor_config.json")  # template files of processors of transformers 4
WINDOW = 2**16  # characters per step when the tokens of a long text are counted


class Tokenizer:
    """Encodes text and decodes ids.

    Text of a request does not become a special token (docs/research/decoding-rules.md#special-tokens). Special tokens
    are written as marks that are drawn at random per process. The chat template writes the marks, and `encode_limited`
    those of a prompt that the client has rendered. A token is special if the checkpoint declares it so, if config.json
    names it as mask or end, or if the chat template writes it as markup.
    """

    def __init__(self, directory: str | Path, chat_template: str | Path | None = None) -> None:
        """Reads the tokenizer, its configuration and the chat templates of `directory`.

        Args:
            directory: The checkpoint.
            chat_template: A jinja file instead of the checkpoint's template.

        Raises:
            ConfigError: A file is missing or invalid; names the file.
        """
        directory = self.directory = Path(directory)
        data = tokenizer_json.read_tokenizer(directory)
        self._file = tokenizer_json.source_name(directory)
        is_converted = not checkpoint_files.has(directory, tokenizer_json.FILE)
        if data is None:
            raise ConfigError(f"{self._file}: not found; the checkpoint has no tokenizer; {tokenizer_json.REMEDY}")
        config = checkpoint_files.read_json(directory, tokenizer_json.CONFIG_FILE) or {}
        controls = filter(tokenizer_json.is_control, data["added_tokens"])
        self._controls = {token["content"]: token["id"] for token in controls}
        library = _load(data, self._file)  # with special tokens under their own names; it checks the file's form
        tokens = _tokens(data)
        sources = _template_sources(directory, config, chat_template)
        special = _special_ids(
            data, checkpoint_files.read_json(directory, "config.json") or {}, "".join(sources.values())
        )
        self.special = frozenset(special)  # ids without text
        marks = self._marks = Marks({tokens[id]: new_mark() for id in special})
        # Shorter ones, and words, are probably meant as text.
        self._markup = [text for text in marks.of_tokens if len(text) > 2 and _is_markup(text)]
        self._markup_begins = {text[0] for text in self._markup}

        hidden = {token["id"] for token in data["added_tokens"] if token.get("special")}
        self.byte_decoder = TokenByteDecoder(tokens, data.get("decoder"), hidden)
        self.max_token_id = max(tokens)
        self._max_token_bytes = self.byte_decoder.max_token_bytes()
        self._ids = {text: id for id, text in tokens.items()}
        self._prefix = tokenizer_json.Prefix.of(data, marks.of_tokens) if is_converted else None
        self._encoder = _load(tokenizer_json.with_new_names(data, marks.of_tokens), self._file)
        for text, mark in marks.of_tokens.items():
            found = self._encoder.token_to_id(mark)
            if found != self._ids[text]:
                raise ConfigError(
                    f"{self._file}: the special token {text!r} has the id {self._ids[text]}, but is loaded with "
                    f"{found}; ids of added tokens continue those of the vocabulary, each once and without gaps"
                )
        self.named_tokens = tokenizer_json.named_tokens(directory)  # name (such as bos_token) -> text
        self.chat_template = sources.get("default")  # source of the template without tools; None without templates
        self._templates = {name: ChatTemplate(source, marks, self.named_tokens) for name, source in sources.items()}
        try:
            self._check_templates(library, marks)
        except TokenizersLibraryError as error:
            raise ConfigError(f"{self._file}: cannot be used: {error}") from None

    @property
    def has_template(self) -> bool:
        """Whether conversations can be rendered."""
        return "default" in self._templates

    def token_id(self, token: str) -> int | None:
        """Returns the id of a vocabulary entry by its exact text, including special tokens."""
        return self._ids.get(token)

    def control_id(self, token: str) -> int | None:
        """Returns the id of a token that grammars do not match as text, but only by its id; None for others."""
        return self._controls.get(token)

    @property
    def supports_tools(self) -> bool:
        """Whether the chat template uses the variable `tools`."""
        return self.has_template and any(template.supports_tools for template in self._templates.values())

    def special_text_in(self, text: str) -> str | None:
        """Returns a special token whose text is in `text`, where it is ordinary text; None if there is none."""
        if any(first in text for first in self._markup_begins):
            return next((token for token in self._markup if token in text), None)
        return None

    def certainly_exceeds(self, text: str, tokens: int) -> bool:
        """Returns whether `text` certainly has more than `tokens` tokens, without encoding it; False if uncertain.

        A normalizer may shorten a text to a third (it composes characters), so a text must be four times too long.
        """
        return self._max_token_bytes > 0 and len(text) > 4 * self._max_token_bytes * tokens

    def encode(self, text: str, param: str = "prompt") -> list[int]:
        """Encodes `text` as ordinary text. Raises RequestError for `param` if it is not valid Unicode."""
        _check_unicode(text, param)
        ids: list[int] = self._encode(text).ids
        return ids

    def encode_limited(
        self,
        text: str,
        tokens: int,
        param: str = "prompt",
        is_needed: Callable[[], bool] = lambda: True,
        *,
        parse_special: bool = False,
    ) -> list[int] | None:
        """Encodes `text`, or returns None if it has far more than `tokens` tokens.

        The tokens of a long text are first counted in windows, so that a text that is too long takes the memory of a
        window. Each cut adds a few tokens; therefore the count must be twice too large.

        Args:
            text: The text.
            tokens: Maximum number of tokens.
            param: Field that errors name.
            is_needed: Returns False once the client has disconnected.
            parse_special: Encode the texts of special tokens as these tokens.

        Raises:
            RequestError: As `encode`.
            Cancelled: `is_needed` returned False.
        """
        if self.certainly_exceeds(text, tokens):
            return None
        if parse_special:
            text = self._marks.marked(text)
        if len(text) > WINDOW:
            _check_unicode(text, param)
            found = 0
            for windows, at in enumerate(range(0, len(text), WINDOW), start=1):
                if not is_needed():
                    raise Cancelled
                found += len(self._encode(text[at : at + WINDOW]))
                if found > 2 * (tokens + windows):
                    return None
        return self.encode(text, param)

    def render(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], budget: RenderBudget | None = None
    ) -> str:
        """Renders a conversation through the chat template, as text for `encode`; see `encode_chat`."""
        if not self.has_template:
            why = "this model has no chat template; use /v1/completions, or start with --chat-template"
            raise refuse("messages", why)
        _check_messages(messages)
        name = "tool_use" if kwargs.get("tools") and "tool_use" in self._templates else "default"
        return self._templates[name].render(messages, kwargs, budget)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], /, **template_kwargs: Any) -> list[int]:
        """Encodes a conversation through the chat template. Nothing is added to the template's output.

        Args:
            messages: Objects with at least `role` and `content`, both text.
            template_kwargs: Further variables of the template; `add_generation_prompt` is true by default.

        Raises:
            RequestError: There is no template, or it cannot render the messages.
        """
        return self.encode(self.render(messages, template_kwargs), param="messages")

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes `ids`, including special tokens. Invalid UTF-8 becomes U+FFFD; unknown ids are skipped."""
        return self.byte_decoder.decode(ids)

    def _encode(self, text: str, encoder: Any = None) -> Any:
        """Encodes with the library, which releases the GIL; without an encoder, with the tokenizer's own."""
        if self._prefix is not None:
            text = self._prefix.add(text)
        encoder = encoder or self._encoder
        return _call_library(encoder.encode_batch_fast, [text], add_special_tokens=False)[0]

    def _check_templates(self, library: Any, marks: Marks) -> None:
        """Raises ConfigError if a template concatenates special tokens from parts, which marks cannot represent, or if
        the tokenizer does not find them in its text, for example because a normalizer changes them.

        `library` has the special tokens under their own names.
        """
        chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
        chat += [{"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
        for template in self._templates.values():
            for messages in (chat[1:2], chat[:2], chat[1:], chat):
                try:
                    text = template.render(messages, {})
                except RequestError:
                    continue  # for example, a template may refuse system messages
                if self.encode(text) == self._encode(plain := marks.unmarked(text), library).ids:
                    continue
                if marks.marked(plain) != text:
                    raise ConfigError(
                        "the chat template concatenates special tokens from parts; write each in one piece"
                    )
                names = ", ".join(repr(token) for token in marks.of_tokens if token in plain)
                raise ConfigError(
                    f"{self._file}: its ids of the chat template's text lack some of the tokens {names}; set "
                    "`normalized` of these added tokens to false, or declare them special"
                )


def _load(data: Mapping[str, Any], file: str) -> Any:
    try:
        encoder = _call_library(tokenizers.Tokenizer.from_str, json.dumps(data))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"{file}: cannot be loaded: {error}") from None
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


class TokenizersLibraryError(RuntimeError):
    """The tokenizers library panicked, as it does for some patterns of checkpoints."""


def _call_library(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the library. Its panics are not instances of `Exception`, so they are converted."""
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise TokenizersLibraryError(f"the tokenizers library failed: {error}") from None


def _check_unicode(text: str, param: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise refuse(param, "holds a lone surrogate, which is no character") from None


def _tokens(data: Mapping[str, Any]) -> dict[int, str]:
    """Returns id -> string of the model's vocabulary and the added tokens."""
    vocab = data["model"].get("vocab", {})
    if isinstance(vocab, dict):
        tokens = {id: text for text, id in vocab.items()}
    else:  # unigram: pairs of token and score
        tokens = {id: piece for id, (piece, _) in enumerate(vocab)}
    tokens |= {token["id"]: token["content"] for token in data["added_tokens"]}
    if not tokens:
        raise ConfigError("tokenizer.json: its vocabulary is empty")
    return tokens


def _special_ids(data: Mapping[str, Any], model_config: Mapping[str, Any], template: str) -> list[int]:
    named: set[Any] = set()
    for name in ("mask_token_id", "eos_token_id", "bos_token_id", "pad_token_id"):
        value = model_config.get(name)
        named |= {id for id in (value if isinstance(value, list) else [value]) if isinstance(id, int)}

    def is_special(token: Mapping[str, Any]) -> bool:
        text: str = token["content"]
        return bool(token.get("special")) or token["id"] in named or (_is_markup(text) and text in template)

    return [token["id"] for token in data["added_tokens"] if is_special(token)]


def _is_markup(text: str) -> bool:
    return any(not char.isalnum() and not char.isspace() and char != "▁" for char in text)


def _template_sources(directory: Path, config: Mapping[str, Any], override: str | Path | None) -> dict[str, str]:
    """Returns templates by name: `default`, and `tool_use` for conversations with tools, as in transformers.

    Jinja files take precedence over tokenizer_config.json, as for AutoTokenizer. Without either, the template is the
    processor's, in `PROCESSOR_FILES`. Raises ConfigError for a template that is not text.
    """
    if override is not None:
        return {
            "default": checkpoint_files.read_flag_file(override, "--chat-template", checkpoint_files.TEMPLATE_BYTES)
        }
    from_files = {
        name: text
        for name, file in TEMPLATE_FILES.items()
        if (text := checkpoint_files.read_text(directory, file, checkpoint_files.TEMPLATE_BYTES)) is not None
    }
    found = from_files or _json_templates(config.get("chat_template"), directory / tokenizer_json.CONFIG_FILE)
    for name in PROCESSOR_FILES:
        if not found:
            settings = checkpoint_files.read_json(directory, name) or {}
            found = _json_templates(settings.get("chat_template"), directory / name)
    return found


def _json_templates(value: Any, file: Path) -> dict[str, str]:
    """Returns the templates of a JSON file: a text, an object of texts, or a list of objects with name and template."""
    if value is None:
        return {}
    if isinstance(value, str):
        named: dict[Any, Any] = {"default": value}
    elif isinstance(value, Mapping):
        named = dict(value)
    elif isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        named = {entry.get("name"): entry.get("template") for entry in value}
    else:
        raise ConfigError(f"{file}: chat_template must be a text, an object or a list; use --chat-template or fix it")
    for name, text in named.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConfigError(f"{file}: chat_template must have texts as names and templates; name {name!r} does not")
        if len(text) > checkpoint_files.TEMPLATE_BYTES:
            raise ConfigError(
                f"{file}: its chat_template is longer than {checkpoint_files.TEMPLATE_BYTES} characters; "
                "make it smaller"
            )
    if named and "default" not in named:
        names = ", ".join(map(repr, sorted(named)))
        log.warning("%s: no chat template is called 'default', only %s; --chat-template names one", file, names)
    return {name: text for name, text in named.items() if name in TEMPLATE_FILES}


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise refuse("messages", "must be a list of at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise refuse(f"messages[{i}]", "must be an object")
        for name in ("role", "content"):
            if not isinstance(message.get(name), str):
                raise refuse(f"messages[{i}].{name}", "must be text")
