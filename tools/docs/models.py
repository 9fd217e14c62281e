"""The tables of docs/models.md: ``python -m tools.docs.models`` writes them there, from what families, strategies
and rules declare, and from the named shapes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from runtime.algorithms import rules
from runtime.bench.model_shapes import ARCHITECTURES
from runtime.engine.request_defaults import supported_algorithms
from runtime.engine.setup import DEFAULT_MODEL_LEN
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.layer_factory import Build
from runtime.layers.parameter import weights_of
from runtime.models import Family, families, resolve_family
from runtime.strategies import DecodingContext, Strategy, also_fits, make_strategy, strategies
from tools.docs.flags import put_between, rewrite

CONTEXT = DecodingContext(block_size=32, buffer_size=None, prefix_caching=True, max_model_len=4096)
TINY = 10**8  # parameters below which a named shape is one for tests


def family_table() -> str:
    """Each family with the strategies that decode it, and what holds where flags and files say nothing."""
    head = "| Family | Strategies | Rules | `accept_threshold` | Mask id | Ends an answer |\n|---|---|---|---|---|---|"
    rows: dict[tuple[str, str], list[str]] = {}
    for family, strategy, key in fits():
        rows.setdefault((family.key, _defaults(family, strategy, key)), []).append(f"`{key}`")
    return "\n".join([head, *(f"| `{key}` | {', '.join(names)} | {rest} |" for (key, rest), names in rows.items())])


def fits() -> list[tuple[Family[Any], Strategy, str]]:
    """Every family with every strategy that this version has for it; the first of a family is its default."""
    found = []
    for family in {resolve_family(key, {}).key: resolve_family(key, {}) for key in families()}.values():
        keys = (*family.strategies, *also_fits(family.key))
        found += [(family, make_strategy(key, keys, CONTEXT), key) for key in keys if key in strategies()]
    return found


def _defaults(family: Family[Any], strategy: Strategy, key: str) -> str:
    """The cells after the strategies'."""
    threshold = strategy.defaults.get("accept_threshold", family.accept_threshold)
    mask = "none" if not family.masks else "the files'" if family.mask_id is None else f"{family.mask_id}"
    words = [f"`{word}`".replace("|", "\\|") for word in family.turn_end_tokens]
    ends = ", ".join([*map(str, family.eos_ids), *words]) or "the files'"
    return " | ".join([_rules(family, key), "-" if strategy.noisy else f"{threshold}", mask, ends])


def _rules(family: Family[Any], key: str) -> str:
    fitting = {rule.key for rule in supported_algorithms(family, key)}
    others = [key for key in rules() if key not in fitting]
    if len(others) < len(fitting):
        return "all but " + ", ".join(f"`{key}`" for key in others) if others else "all"
    return ", ".join(f"`{key}`" for key in sorted(fitting))


def shape_table() -> str:
    """What the published checkpoints of named shapes take, computed from models without memory."""
    head = (
        "| Shape | Family | Parameters | Weights, bfloat16, fp8, int4 | K/V a token, bfloat16 | Block | "
        "Length: default, most |\n"
        "|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *filter(None, map(_shape_row, ARCHITECTURES))])


def _shape_row(name: str) -> str:
    """Empty for a shape that is there for tests."""
    config = ARCHITECTURES[name]
    family = resolve_family(None, config)
    arch = family.parse(config)
    models = [family.make(arch, Build.choose("meta", torch.bfloat16, None, form)) for form in (None, "fp8", "int4")]
    held = [weights_of(cast(nn.Module, model)).values() for model in models]
    parameters = sum(weight.size for weight in held[0])
    if parameters < TINY:
        return ""
    weights = ", ".join(f"{sum(weight.nbytes for weight in each) / 1e9:.1f}" for each in held)
    facts = family.facts(arch)
    length = min(facts.max_model_len or DEFAULT_MODEL_LEN, facts.max_positions)
    return (
        f"| {name} | `{family.key}` | {parameters / 1e9:.1f} billion | {weights} GB | "
        f"{UnifiedPool.page_bytes(models[0].kv_shapes, 1, torch.bfloat16):,} bytes | {facts.block_size} | "
        f"{length:,}, {facts.max_positions:,} |"
    )


TABLES = {"families": family_table, "shapes": shape_table}


def with_tables(page: str) -> str:
    """`page` with each table between its marks."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: python -m tools.docs.models -->", f"<!-- end of {name} -->"
        page = put_between(page, begin, end, table())
    return page


if __name__ == "__main__":
    rewrite("models.md", with_tables)
