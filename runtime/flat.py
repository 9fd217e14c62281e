"""dlmserve's flat names of decoding fields, brought under the names that this server has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runtime.fields import flag, refuse, shown

if TYPE_CHECKING:
    from runtime.params import SamplingParams

SAME = {
    "confidence_metric": "confidence_metric",
    "local_leap_anchor_threshold": "local_leap.anchor",
    "local_leap_neighbor_threshold": "local_leap.neighbor",
    "local_leap_radius": "local_leap.radius",
    "block_length": "block_length",
    "force_single_batch": "force_single_batch",
}
WORDS = {"confidence_metric": {"top1_prob": "max_prob", "entropy_inverse": "neg_entropy"}}
NOT_THERE = ("block_schedule", "target_length")


def merged(params: SamplingParams, given: Mapping[str, Any], path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """`given` with what flat names say, and how the client spelt each of those fields.

    Raises RequestError for a flat name beside the field that it stands for, and for those without a meaning here.
    """
    fields, spelt = dict(given), {}
    for name, field in SAME.items():
        value = getattr(params, name)
        if value is None:
            continue
        if field in given:
            raise refuse(name, f"says the same as {path}.{field}; give one of them")
        fields[field] = WORDS.get(name, {}).get(value, value) if isinstance(value, str) else value
        spelt[field] = name
    for name in NOT_THERE:
        if getattr(params, name) is not None:
            raise refuse(name, "means nothing here, as dlmserve does not say what it does; leave it out")
    if flag("use_local_leap", params.use_local_leap):
        if fields.get("algorithm", "local_leap") != "local_leap":
            word = shown(fields["algorithm"])
            raise refuse("use_local_leap", f"has no meaning with {path}.algorithm {word}, only with local_leap")
        fields["algorithm"], spelt["algorithm"] = "local_leap", "use_local_leap"
    return fields, spelt
