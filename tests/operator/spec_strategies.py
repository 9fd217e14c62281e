"""Strategies of specs for property tests: fields are absent or have any value that the schema accepts."""

from typing import get_args

from annotated_types import Le
from hypothesis import strategies as st

from unmask_operator.api.base import flag_of
from unmask_operator.api.engine import Engine


def values(model):
    """Returns a strategy for a section: each field absent or with any value that the schema allows."""
    fields = {}
    for field in model.model_fields.values():
        flag = flag_of(field)
        if flag is None:
            continue
        if choices := [word for part in get_args(field.annotation) for word in get_args(part)]:
            value = st.sampled_from(choices)
        elif flag.type == "bool":
            value = st.booleans()
        elif flag.type == "int":
            top = min((bound.le for bound in field.metadata if isinstance(bound, Le)), default=4096)
            value = st.sampled_from([n for n in (1, 2, 3, 4, 8, 24, 32, 64, 1024, 4096) if n <= top])
        else:
            value = st.floats(0, 1, exclude_min=flag.above_low) | st.sampled_from([1, 1.0])
        fields[field.alias] = value
    return st.fixed_dictionaries({}, optional=fields)


URIS = ("demo://", "pvc://models", "pvc://models/LLaDA2.0-mini/main/")
HUB = {"uri": "hf://a/b"}
MODELS = [*({"uri": uri} for uri in URIS), {**HUB, "family": "x"}, {**HUB, "revision": "refs/pr/1", "name": "a/b:c"}]
LISTED = ({"uri": "demo://roman"}, {"uri": "pvc://models/x/y"}, HUB, {**HUB, "revision": "v1"})
NAMED = [{"name": f"a-{i}", **one} for i, one in enumerate(LISTED)]
ADAPTERS = st.lists(st.sampled_from(NAMED), max_size=3, unique_by=lambda one: one["name"])
LORA = st.fixed_dictionaries(
    {"claimNames": st.just(["models"])},
    optional={"adapters": ADAPTERS, "maxAdapters": st.integers(1, 256), "maxRank": st.integers(1, 512)},
) | ADAPTERS.filter(bool).map(lambda some: {"preMerge": True, "adapters": some[:1], "claimNames": ["models"]})
SPECS = st.fixed_dictionaries(
    {"model": st.sampled_from(MODELS)},
    optional={
        "engine": values(Engine),
        "gpu": st.sampled_from([{}, {"resourceName": "amd.com/gpu"}]),
        "parallelism": st.fixed_dictionaries({}, optional={"data": st.integers(1, 8)})
        | st.integers(1, 8).flatmap(
            lambda tensor: st.fixed_dictionaries(
                {"tensor": st.just(tensor)},
                optional={
                    "expert": st.just(tensor),
                    "nodes": st.sampled_from([count for count in range(1, tensor + 1) if tensor % count == 0]),
                },
            )
        ),
        "lora": LORA,
        "drainTimeoutSeconds": st.integers(0, 3600),
        "drainDelaySeconds": st.integers(0, 3600),
    },
)
