"""``unmask models``: the published repositories that the server reads, with their facts and the defaults for them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.models.published import Repository

EPILOG = """\
A dash is a fact that no source tells. --json has the source of each fact, and all default values.

The exit code is 1 if no repository has PATTERN in its name or its family."""
NOTE = """
defaults: without flags. "file's sampling": temperature, top_p, top_k and min_p of generation_config.json
checked:  with what the family was compared, on tiny checkpoints with random weights. The weights of these repositories
          were not compared: `unmask verify` is for users who have them."""
COLUMNS = ("repository", "family", "GB", "format", "license", "block", "defaults", "checked")
THRESHOLDS = ("accept_threshold", "edit_threshold")  # decoding fields of the table


def main(argv: list[str]) -> int:
    """Prints the repositories. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="unmask models", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Lists published repositories: weights in GB, their format and license, tokens per block, the "
        "server's defaults, and how the family was checked.",
    )  # fmt: skip
    parser.add_argument("pattern", nargs="?", default="", help="a part of the name or the family, whatever the case")
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    args = parser.parse_args(argv)
    found = described(args.pattern)
    if not found:
        print(f"error: no repository or family has {args.pattern!r} in its name", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) if args.json else f"{table(found)}\n{NOTE}")
    return 0


def described(pattern: str = "") -> list[dict[str, Any]]:
    """Returns the repositories with a pattern in their name or family, as `--json` prints them."""
    from runtime.models.published import checks, repositories

    checked = checks()
    return [
        {**asdict(each), "defaults": defaults(each), "checked": {**asdict(checked[each.family]), "weights": "random"}}
        for each in repositories()
        if pattern.lower() in each.name.lower() or pattern.lower() in each.family
    ]


def defaults(repository: Repository) -> dict[str, Any]:
    """Returns strategy, algorithm, sampling and decoding fields of a request that sets none.

    `sampling` is None if it is that of generation_config.json.
    """
    from runtime.config import EngineConfig
    from runtime.engine.model_plan import resolve_strategy_key
    from runtime.engine.request_defaults import CheckpointDefaults, request_defaults
    from runtime.models.base import resolve_family
    from runtime.models.published import published_defaults
    from runtime.request.field_spec import nested, values_of
    from runtime.scheduling.strategy import DecodingContext
    from runtime.strategies.registry import make_strategy

    family, names, block = resolve_family(repository.family, {}), (repository.name,), repository.block.value
    published = published_defaults(family.key, names)
    key = resolve_strategy_key(None, family, names)
    context = DecodingContext(block_size=block, buffer_size=None, prefix_caching=True, max_model_len=4096)
    strategy = make_strategy(key, family.strategies, context)
    served = request_defaults(EngineConfig(), family, CheckpointDefaults(published, {}), strategy, key, block, None)
    algorithm = next(each for each in served["algorithms"] if each.key == served["default_algorithm"])
    return {
        "strategy": key,
        "algorithm": algorithm.key,
        "sampling": dict(published.sampling) or None,
        "decoding": nested(values_of([*served["strategy_fields"], *algorithm.fields])),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a line per repository, after the names of the columns."""
    lines = [COLUMNS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    facts = (str(row[name]["value"]) if row[name] else "-" for name in ("weights", "format", "license", "block"))
    family = row["family"] + (" (by --model-name)" if row["needs_name"] else "")
    return (row["name"], family, *facts, _defaults(row["defaults"]), _checked(row["checked"]))


def _defaults(values: dict[str, Any]) -> str:
    sampling = values["sampling"]
    greedy = "file's sampling" if sampling is None else "greedy" if not sampling["temperature"] else f"{sampling}"
    decoding = values["decoding"]
    shown = [f"{name} {decoding[name]:g}" for name in THRESHOLDS if name in decoding]
    shown += [f"suppress_eos {decoding['suppress_eos']}"] if decoding.get("suppress_eos", "none") != "none" else []
    return ", ".join([values["strategy"], " ".join([values["algorithm"], *shown]), greedy])


def _checked(check: dict[str, Any]) -> str:
    answers = f"answers ({check['answers']})".replace("`", "") if check["answers"] else ""
    own = ", ".join(filter(None, ["logits" if check["logits"] else "", answers]))
    return "; ".join(filter(None, [own and f"published code: {own}", check["others"]]))
