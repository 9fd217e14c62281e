"""The requested format of the output, under all of its names, and validation of its grammar in the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from runtime.request.engine_messages import EngineInfo
from runtime.request.structured import FIELD
from runtime.request.validation import preview, refuse
from runtime.server.env import backend_environment
from runtime.server.middleware.auth import api_key_id
from runtime.server.openai.protocol import GenerationRequest
from runtime.server.preprocessing.executors import SingleThreadExecutor, cancel_on_disconnect
from runtime.structured_output.grammar_cache import GrammarError
from runtime.structured_output.sandbox import GrammarSandbox
from runtime.tokenizer import Tokenizer

# Keywords that determine the type of a value. Schemas with one of them get no type.
_TYPED = {"type", "enum", "const", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"}
MAX_WAITING_GRAMMARS = 128  # of one API key, or of all clients of a server without keys
# Other servers' names for the same.
ALIASES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}


def parse_response_format(body: GenerationRequest) -> tuple[dict[str, Any] | None, str]:
    """Returns the format in the form of `structured_outputs`, None without one, and the field that requests it.

    Raises RequestError for conflicting or invalid formats.
    """
    found = {name: {kind: value} for name, kind in ALIASES.items() if (value := getattr(body, name)) is not None}
    asked = getattr(body, FIELD)
    if asked is not None:
        found[FIELD] = asked
    name, requested = body.format()
    if requested is not None and (made := _parse_openai_format(name, requested)) is not None:
        found[name] = made
    if not found:
        return None, FIELD
    first, *others = found
    for name in others:  # clients name one form in the ways of several servers
        if found[name] != found[first]:
            raise refuse(name, f"conflicts with {first}; send one of them")
    return found[first], first


def _parse_openai_format(name: str, requested: object) -> dict[str, Any] | None:
    """OpenAI's `response_format`. A JSON schema is one level higher in `text.format` and `output_config.format`, and
    some clients write it there in `response_format` too."""
    kind = requested.get("type") if isinstance(requested, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        assert isinstance(requested, dict)
        schema = requested.get("schema")
        return {"json_object": True} if schema is None or schema is True else {"json": _object_schema(schema)}
    if kind == "json_schema":
        assert isinstance(requested, dict)
        described = requested.get("json_schema") or requested
        schema = described.get("schema") if isinstance(described, dict) else None
        if schema is None:
            raise refuse(name, "json_schema must be an object with a schema")
        return {"json": schema}
    raise refuse(name, f"{preview(requested)} is not supported; its type must be text, json_object or json_schema")


def _object_schema(schema: Any) -> Any:
    """Returns the schema of `json_object`, restricted to objects if it has no type."""
    if isinstance(schema, dict) and not _TYPED & schema.keys():
        return {"type": "object", **schema}
    return schema


class GrammarValidator:
    """`require` gives the engine's facts and the tokenizer, or raises Unavailable."""

    def __init__(self, require: Callable[[], tuple[EngineInfo, Tokenizer]]) -> None:
        self._require = require
        self._executor = SingleThreadExecutor("grammars", "grammars to compile", MAX_WAITING_GRAMMARS)
        self._sandbox: GrammarSandbox | None = None

    async def check(self, request: Request, grammar: str, param: str) -> None:
        """Raises RequestError for a grammar that no answer can keep to; others are answered meanwhile. ClientGone once
        nobody waits for it: no others wait for its turn then."""
        if self._sandbox is None:
            info, tokenizer = self._require()
            self._sandbox = GrammarSandbox(tokenizer.directory, info, backend_environment(None))
        sandbox = self._sandbox
        why = sandbox.cached_reason(grammar)
        if why is None:

            def work(requested: Callable[[], bool]) -> str:
                return sandbox.check(grammar) if requested() else ""

            why = await cancel_on_disconnect(request, self._executor.run(len(grammar), work, api_key_id(request)))
        if why:
            result = sandbox.result(grammar)
            raise GrammarError(param, why, result.parts, wrong=result.wrong)
