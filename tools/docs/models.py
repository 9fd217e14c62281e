"""Generates tables of docs/models from declarations and named shapes: ``python -m tools.docs.models``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from runtime.algorithms.base import ACCEPT, algorithm_keys
from runtime.bench.model_shapes import ARCHITECTURES
from runtime.engine.model_plan import own_length
from runtime.engine.request_defaults import supported_algorithms
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import ModelFamily, families, resolve_family
from runtime.models.published import Entry, Fact, checks, entries, published_defaults, repositories
from runtime.parameters.weight import named_weights
from runtime.request.engine_messages import SAMPLING
from runtime.scheduling.strategy import DecodingContext, Strategy
from runtime.strategies.registry import make_strategy, strategies, strategies_supporting
from tools.docs.flags import put_between, rewrite

CONTEXT = DecodingContext(block_size=32, buffer_size=None, prefix_caching=True, max_model_len=4096)
TINY = 10**8  # parameters below which a named shape is for tests


def family_table() -> str:
    """Returns the table of families, with their strategies and the defaults without flags."""
    columns = ("Family", "Strategies", "Algorithms", "`accept_threshold`", "Mask id", "Ends an answer")
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    rows: dict[tuple[str, str], list[str]] = {}
    for family, strategy, key in fits():
        rows.setdefault((family.key, _defaults(family, strategy, key)), []).append(f"`{key}`")
    return "\n".join([head, *(f"| `{key}` | {', '.join(names)} | {rest} |" for (key, rest), names in rows.items())])


def fits() -> list[tuple[ModelFamily[Any], Strategy, str]]:
    """Returns every family with each of its strategies; the first strategy of a family is its default."""
    found = []
    for family in {resolve_family(key, {}).key: resolve_family(key, {}) for key in families()}.values():
        keys = (*family.strategies, *strategies_supporting(family.key))
        found += [(family, make_strategy(key, keys, CONTEXT), key) for key in keys if key in strategies()]
    return found


def _defaults(family: ModelFamily[Any], strategy: Strategy, key: str) -> str:
    """Returns the cells after those of the strategies."""
    own = published_defaults(family.key, ()).fields.get("accept_threshold", ACCEPT.default)
    threshold = strategy.defaults.get("accept_threshold", own)
    mask = "none" if not family.masks else "from the checkpoint" if family.mask_id is None else f"{family.mask_id}"
    turn_ends = [f"`{word}`".replace("|", "\\|") for word in family.turn_end_tokens]
    ends = ", ".join([*map(str, family.eos_ids), *turn_ends]) or "from the checkpoint"
    return " | ".join([_algorithms(family, key), "-" if strategy.uniform_noise else f"{threshold}", mask, ends])


def _algorithms(family: ModelFamily[Any], key: str) -> str:
    fitting = {algorithm.key for algorithm in supported_algorithms(family, key)}
    others = [key for key in algorithm_keys() if key not in fitting]
    if len(others) < len(fitting):
        return "all but " + ", ".join(f"`{key}`" for key in others) if others else "all"
    return ", ".join(f"`{key}`" for key in sorted(fitting))


def shape_table() -> str:
    """Returns the memory of the published checkpoints of named shapes, computed from models on the meta device."""
    head = (
        "| Shape | Family | Parameters | Weights, bfloat16, fp8, int4 | K/V a token, bfloat16 | Block | "
        "Length: own, most |\n"
        "|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *filter(None, map(_shape_row, ARCHITECTURES))])


def _shape_row(name: str) -> str:
    """Returns a row; "" for a shape of the tests."""
    config = ARCHITECTURES[name]
    family = resolve_family(None, config)
    arch = family.parse(config)
    models = [
        family.make(arch, LayerFactory.create("meta", torch.bfloat16, None, form)) for form in (None, "fp8", "int4")
    ]
    held = [named_weights(cast(nn.Module, model)).values() for model in models]
    parameters = sum(weight.size for weight in held[0])
    if parameters < TINY:
        return ""
    weights = ", ".join(f"{sum(weight.nbytes for weight in each) / 1e9:.1f}" for each in held)
    facts = family.facts(arch)
    return (
        f"| {name} | `{family.key}` | {parameters / 1e9:.1f} billion | {weights} GB | "
        f"{UnifiedPool.page_bytes(models[0].kv_shapes, 1, torch.bfloat16):,} bytes | {facts.block_size} | "
        f"{own_length(facts):,}, {facts.max_positions:,} |"
    )


def published_table() -> str:
    """Returns the table of published settings, and of what the server uses."""
    rows = [f"| {_checkpoints(entry)} | {_published(entry)} | {_served(entry)} |" for entry in entries()]
    return "\n".join(["| Checkpoints | Published | Defaults of the server |", "|---|---|---|", *rows])


def _checkpoints(entry: Entry) -> str:
    named = "" if entry.repository is None else f", named `{entry.repository}`".replace("|", "\\|")
    return f"`{entry.family}`{named}"


def _published(entry: Entry) -> str:
    return "; ".join(
        f"{each['source']}: {_values({key: value for key, value in each.items() if key != 'source'})}"
        for each in entry.published
    )


def _served(entry: Entry) -> str:
    """Returns the defaults of an entry. Those of sampling, which are all greedy, are one word."""
    shown = {key: value for key, value in entry.served.items() if key not in SAMPLING}
    greedy = ["greedy"] if entry.served.get("temperature") == 0 else []
    general = {key: value for key, value in shown.items() if not isinstance(value, dict)}
    own = [f"with `{key}` {_values(value)}" for key, value in shown.items() if isinstance(value, dict)]
    return ", ".join([*greedy, *filter(None, [_values(general)]), *own])


def _values(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}` {value}" for key, value in fields.items())


def repository_table() -> str:
    """Returns the table of published repositories, with the source of each fact."""
    head = "| Repository | Family | Weights | Format | License | Block |\n|---|---|---|---|---|---|"
    rows = [
        f"| `{each.name}` | `{each.family}`{', by `--model-name`' if each.needs_name else ''} | "
        f"{_fact(each.weights, ' GB')} | {_fact(each.format)} | {_fact(each.license)} | {_fact(each.block)} |"
        for each in repositories()
    ]
    return "\n".join([head, *rows])


def _fact(fact: Fact | None, unit: str = "") -> str:
    return "" if fact is None else f"{fact.value}{unit} ({fact.source})"


def check_table() -> str:
    """Returns the table of what each family was compared with."""
    head = "| Family | Golden logits | Golden answers | Also compared with |\n|---|---|---|---|"
    rows = [
        f"| `{each.family}` | {'yes' if each.logits else '-'} | {each.answers or '-'} | {each.others} |"
        for each in checks().values()
    ]
    return "\n".join([head, *rows])


TABLES = {
    "models/index.md": {
        "families": family_table, "published": published_table, "repositories": repository_table, "shapes": shape_table
    },
    "models/verification.md": {"checks": check_table},
}  # fmt: skip


def with_tables(name: str, page: str) -> str:
    """Returns the page `name` of docs/ with each of its tables between its markers."""
    for key, table in TABLES[name].items():
        begin, end = f"<!-- {key}: python -m tools.docs.models -->", f"<!-- end of {key} -->"
        page = put_between(page, begin, end, table())
    return page


if __name__ == "__main__":
    for name in TABLES:
        rewrite(name, partial(with_tables, name))
