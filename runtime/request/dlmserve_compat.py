"""dlmserve's flat names of decoding fields, brought under the names that this server has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.request.sampling_params import PARAMETERS, SamplingParams
from runtime.request.validation import refuse, shown

SAME = [field for field in PARAMETERS if field.stands_for]


def merged(params: SamplingParams, given: Mapping[str, Any], path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """`given` with what flat names say, and how the client spelt each of those fields.

    Raises RequestError for a flat name beside the field that it stands for.
    """
    fields, spelt = dict(given), {}
    for flat in SAME:
        value, name = getattr(params, flat.name), flat.stands_for
        if value is None:
            continue
        if name in given:
            raise refuse(flat.name, f"says the same as {path}.{name}; give one of them")
        fields[name] = flat.words.get(value, value) if isinstance(value, str) else value
        spelt[name] = flat.name
    if params.use_local_leap:
        if fields.get("algorithm", "local_leap") != "local_leap":
            word = shown(fields["algorithm"])
            raise refuse("use_local_leap", f"has no meaning with {path}.algorithm {word}, only with local_leap")
        fields["algorithm"], spelt["algorithm"] = "local_leap", "use_local_leap"
    return fields, spelt
