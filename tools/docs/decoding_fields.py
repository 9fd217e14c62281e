"""Generates the table of decoding fields in docs/guide/decoding.md: ``python -m tools.docs.decoding_fields``."""

from __future__ import annotations

from runtime.algorithms.base import algorithm_keys, get_algorithm
from runtime.request.field_spec import Field
from runtime.scheduling.strategy import DecodingContext, Strategy
from runtime.strategies.registry import make_strategy, strategies
from tools.docs.flags import put_between, rewrite
from tools.docs.request_fields import describe_values

FEW = 2  # up to this number, the algorithms that do not read a field are listed instead of those that do
BEGIN, END = "<!-- fields: python -m tools.docs.decoding_fields -->", "<!-- end of fields -->"


def field_table() -> str:
    """Returns the table of all fields of algorithms and strategies, with those that read them."""
    declared = [(get_algorithm(key).fields, key) for key in algorithm_keys()]
    declared += [(_strategy(key).fields, key) for key in strategies()]
    readers: dict[Field, list[str]] = {}
    for fields, key in declared:
        for field in fields:
            readers.setdefault(field, []).append(key)
    rows = [_row(field, _readers(keys)) for field, keys in readers.items()]
    return "\n".join(["| Field | Value | Default | With | Meaning |", "|---|---|---|---|---|", *sorted(rows)])


def _strategy(key: str) -> Strategy:
    """Makes a strategy with the block size of most of its models."""
    size = 256 if key == "diffusion_gemma" else 32
    context = DecodingContext(block_size=size, buffer_size=1, prefix_caching=True, max_model_len=4096)
    return make_strategy(key, (key,), context)


def _readers(keys: list[str]) -> str:
    others = [f"`{key}`" for key in algorithm_keys() if key not in keys]
    return f"all but {' and '.join(others)}" if len(others) <= FEW else ", ".join(keys)


def _row(field: Field, readers: str) -> str:
    return f"| `{field.name}` | {describe_values(field)} | {_default(field)} | {readers} | {field.help} |"


def _default(field: Field) -> str:
    if field.per_block:
        return f"{'' if field.default == 1 else f'{field.default} x '}block size"
    if field.kind == "flag":
        return f"`{str(field.default).lower()}`"
    return f"`{field.default}`" if field.kind == "choice" else f"{field.default}"


def with_table(page: str) -> str:
    """Returns `page` with the table between its markers."""
    return put_between(page, BEGIN, END, field_table())


if __name__ == "__main__":
    rewrite("guide/decoding.md", with_table)
