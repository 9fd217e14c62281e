"""Preprocessing of requests: parsing, chat templates, tokenization, grammars; without blocking the event loop.

Small work runs on the loop. Long chats and texts are rendered and encoded in a thread (`executors`). Parsing holds the
GIL and stays on the loop: large bodies are parsed one at a time, shortest first, in steps between which the loop serves
other requests.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.resolve import check_ids, check_length
from runtime.request.validation import refuse
from runtime.server.env import backend_environment
from runtime.server.http_protocol import content_encoding
from runtime.server.serving import executors, request_body
from runtime.server.serving.chat import ChatPrompt
from runtime.server.serving.request_body import B
from runtime.structured_output.gbnf import CheckResult
from runtime.structured_output.grammar_cache import GrammarError
from runtime.structured_output.sandbox import GrammarSandbox
from runtime.tokenizer import Tokenizer
from runtime.tokenizer.template_sandbox import RenderBudget
from runtime.tokenizer.tokenizer import WINDOW

SMALL_BODY = 2**13  # bytes that are parsed in a millisecond or two, whatever they hold
MAX_WAITING_BODIES = 8 * 2**20  # bytes of large bodies that wait to be parsed, together
SMALL_TEXT = 4096  # characters that are encoded in a millisecond or so
SMALL_IDS = 4096
SMALL_CHAT = 32  # messages
MESSAGE_CHARS = 64  # cost of a message in a template, besides its content
PIECE_CHARS = 16  # cost of a piece, besides its characters
MAX_ARGUMENTS = 4096  # values in a template's arguments, at any depth
MAX_TOOL_VALUES = 2**14  # in the schemas of a request's tools
MAX_PROMPT_TOKENS = 2**17  # of all prompts of a request


class Preprocessor:
    """Parses and encodes requests. `require` returns engine info and tokenizer, or raises Unavailable."""

    def __init__(self, require: Callable[[], tuple[EngineInfo, Tokenizer]]) -> None:
        self._require = require
        self._executors = executors.PreprocessingExecutors()
        self._parse_queue = executors.AdmissionQueue(MAX_WAITING_BODIES, "long bodies wait to be read")
        self._sandbox: GrammarSandbox | None = None

    async def parse(self, request: Request, kind: type[B]) -> B:
        """Reads, decodes and validates the body of a request.

        Raises:
            RequestError: 400; 408; 413 for a body that is too large, also once decoded; 415; 429 if too much waits.
            ClientGone: The client closed the connection.
        """
        names = content_encoding.codings(request.headers.getlist(content_encoding.CONTENT_ENCODING))
        data = await request_body.read_body(request)
        if len(data) <= SMALL_BODY and not names:
            return request_body.parse_body(kind, data)
        return await executors.cancel_on_disconnect(
            request, self._parse(kind, data, executors.api_key_id(request), names)
        )

    async def _parse(self, kind: type[B], data: bytes, tenant: str, names: Sequence[str] = ()) -> B:
        """Decodes and parses one large body at a time, and serves other requests between steps.

        Decoding waits in the same queue, so that only one body at a time takes more memory than was sent.
        """
        async with self._parse_queue.slot(len(data), tenant):
            data = await request_body.decode_body(data, names)
            for _ in request_body.check_shape_in_steps(data):
                await asyncio.sleep(0)
            value = request_body.parse_json(data)
            await asyncio.sleep(0)
            return request_body.validate_body(kind, value)

    async def encode(
        self, request: Request, text: str, *, add_bos: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Encodes a text, which may be longer than a prompt.

        Args:
            request: HTTP request.
            text: The text.
            add_bos: Prepend the BOS token, if there is one.
            parse_special: Encode the texts of special tokens as these tokens instead of as ordinary text. See
                docs/research/decoding-rules.md#special-tokens.
        """
        encode = self._encode_prompt if add_bos else self._encode
        return await self.run(request, len(text), partial(encode, text, "prompt", parse_special))

    async def encode_pieces(
        self, request: Request, texts: list[str], param: str, max_tokens: int, *, parse_special: bool = False
    ) -> list[list[int]]:
        """Encodes the pieces of a text without a BOS token. Raises RequestError for more than `max_tokens`."""

        def work(is_needed: Callable[[], bool]) -> list[list[int]]:
            encoded: list[list[int]] = []
            left = max_tokens
            for text in texts:
                encoded.append(self._encode(text, param, parse_special, is_needed) if is_needed() else [])
                left -= len(encoded[-1])
                if left < 0:
                    raise context_length_error(param, self._require()[0], "more than")
            return encoded

        return await self.run(request, sum(PIECE_CHARS + len(text) for text in texts), work)

    async def encode_each(
        self, request: Request, prompts: Sequence[str | list[int]], *, parse_special: bool = False
    ) -> list[list[int]]:
        """Encodes prompts. Prompts of token ids stay unchanged. `parse_special`: as for `encode`."""
        info = self._require()[0]

        def work(is_needed: Callable[[], bool]) -> list[list[int]]:
            encoded: list[list[int]] = []
            tokens = 0
            for i, prompt in enumerate(prompts):
                param = "prompt" if len(prompts) == 1 else f"prompt[{i}]"
                if isinstance(prompt, str):
                    prompt = self._encode_prompt(prompt, param, parse_special, is_needed)
                check_length(prompt, info, param)  # the first that is too long ends it
                encoded.append(prompt)
                tokens += len(prompt)
                if i and tokens > MAX_PROMPT_TOKENS:
                    sentence = f"these have more than {MAX_PROMPT_TOKENS} tokens together; send several requests"
                    raise refuse("prompt", sentence)
            return encoded

        return await self.run(request, sum(len(prompt) for prompt in prompts if isinstance(prompt, str)), work)

    async def find_special_text(self, request: Request, texts: Sequence[str]) -> str | None:
        """Returns a special token whose text is in one of the texts; None if there is none."""
        tokenizer = self._require()[1]

        def work(is_needed: Callable[[], bool]) -> str | None:
            return next((found for text in texts if (found := tokenizer.special_text_in(text))), None)

        return await self.run(request, sum(map(len, texts)), work)

    async def encode_chat(
        self, request: Request, chat: ChatPrompt, tools: list[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Returns the ids of a chat, rendered with the chat template.

        Args:
            request: HTTP request.
            chat: The chat. If it is continued, the ids end with the content of the last message, and nothing that the
                template writes after it.
            tools: Given to the template.
        """
        info, tokenizer = self._require()
        messages, variables = chat.messages, {**info.template_variables, **chat.variables}
        for name in ("self", "messages"):
            if name in variables:
                raise refuse(f"chat_template_kwargs.{name}", "this name is the template's own; leave it out")
        size = count_characters(variables)
        simple = all(value is None or isinstance(value, bool | str) for value in variables.values())
        if tools is not None:
            if "tools" in variables:
                raise refuse("chat_template_kwargs.tools", "is also set by tools; leave one of them out")
            size += count_characters({"tools": tools}, "tools", MAX_TOOL_VALUES)
            variables["tools"] = tools
        size += sum(MESSAGE_CHARS + len(str(value)) for message in messages for value in message.values())
        begun = mark = ""
        if chat.continued:
            mark = secrets.token_hex(16)  # no template changes it, and no message has it
            begun, variables["add_generation_prompt"] = str(messages[-1]["content"]), False
            messages = [*messages[:-1], {**messages[-1], "content": mark}]

        def render(budget: RenderBudget) -> str:
            text = tokenizer.render(messages, variables, budget)
            if not chat.continued:
                return text
            before, found, _ = text.rpartition(mark)
            if not found:
                raise refuse("messages", "the last one cannot be continued: the model's chat template does not show it")
            return before + begun

        def work(is_needed: Callable[[], bool]) -> list[int]:
            return self._encode(render(RenderBudget(is_needed=is_needed)), "messages", False, is_needed)

        if size <= SMALL_TEXT and len(messages) <= SMALL_CHAT and simple:
            text = render(RenderBudget())
            if len(text) <= SMALL_TEXT:
                return self._encode(text, "messages", False, _always_needed)
        return await self._executors.run(request, size, work)

    async def decode(self, request: Request, ids: list[int]) -> str:
        """Returns the text of token ids, including special tokens.

        A long list is emptied: while the request waits for a thread, the packed ids take a tenth of the memory.
        """
        info, tokenizer = self._require()
        limit = max(2 * info.max_model_len, WINDOW)  # what a text may have to be encoded at all
        if len(ids) > limit:
            raise refuse("tokens", f"has {len(ids)} ids; at most {limit}")
        check_ids(ids, info, "tokens")
        if len(ids) <= SMALL_IDS:
            return tokenizer.decode(ids)
        packed = array("q", ids)
        ids.clear()
        return await self._executors.run(request, len(packed), lambda is_needed: tokenizer.decode(packed))

    async def check_grammar(self, request: Request, grammar: str, param: str) -> tuple[int, ...] | None:
        """Compiles a grammar in the sandbox, and returns a short output of it; None if none was found.

        Raises:
            GrammarError: no output can satisfy the grammar, which the field `param` requests.
            ClientGone: the client disconnected. It leaves the queue.
        """
        if self._sandbox is None:
            info, tokenizer = self._require()
            self._sandbox = GrammarSandbox(tokenizer.directory, info, backend_environment(None))
        sandbox = self._sandbox
        result = sandbox.result(grammar)
        if result is None:

            def work(is_needed: Callable[[], bool]) -> CheckResult:
                return sandbox.check(grammar) if is_needed() else CheckResult()

            result = await self._executors.compile(request, len(grammar), work)
        if result.reason:
            raise GrammarError(param, result.reason, result.parts, wrong=result.wrong)
        return result.witness

    async def run(self, request: Request, size: int, work: executors.Work[executors.T]) -> executors.T:
        """Runs `work` of `size` characters, without a thread if they are few."""
        return work(_always_needed) if size <= SMALL_TEXT else await self._executors.run(request, size, work)

    def _encode_prompt(self, text: str, param: str, parse_special: bool, is_needed: Callable[[], bool]) -> list[int]:
        """Encodes a text with the BOS token before it, unless the text begins with it."""
        ids, info = self._encode(text, param, parse_special, is_needed), self._require()[0]
        return ids if parse_special and ids[:1] == [info.bos_token_id] else info.with_bos(ids)

    def _encode(self, text: str, param: str, parse_special: bool, is_needed: Callable[[], bool]) -> list[int]:
        info, tokenizer = self._require()
        ids = tokenizer.encode_limited(text, info.max_model_len, param, is_needed, parse_special=parse_special)
        if ids is None:
            raise context_length_error(param, info)
        return ids


def count_characters(arguments: dict[str, Any], name: str = "chat_template_kwargs", limit: int = MAX_ARGUMENTS) -> int:
    """Returns the approximate number of characters of the arguments of a template.

    Raises RequestError for too many values: as Python objects they take far more memory than in the body.
    """
    total, left, seen = 0, [arguments], 0
    while left:
        value: Any = left.pop()
        seen += 1
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, dict):
            left.extend(value.values())
            total += sum(map(len, value))
        elif isinstance(value, list):
            left.extend(value)
        if seen + len(left) > limit:
            raise refuse(name, f"holds more than {limit} values; send fewer")
    return total + 4 * seen


def context_length_error(param: str, info: EngineInfo, what: str = "far more than") -> RequestError:
    """Returns the error for a text that is too long, without its exact number of tokens."""
    sentence = f"has {what} the {info.max_model_len} tokens of the model's length; shorten it"
    return refuse(param, sentence, code="context_length_exceeded")


def _always_needed() -> bool:
    return True
