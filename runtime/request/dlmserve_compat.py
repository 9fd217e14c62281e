"""Maps flat decoding fields of dlmserve to the fields of ``decoding``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.request.sampling_params import PARAMETERS, SamplingParams
from runtime.request.validation import preview, refuse

FLAT_FIELDS = [field for field in PARAMETERS if field.stands_for]


def merge_flat_fields(
    params: SamplingParams, fields: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Adds the flat fields of a request to its decoding fields.

    Args:
        fields: fields of ``decoding`` by name.
        path: path of ``decoding`` for error messages.

    Returns:
        All fields by name, and the client's name of each field that was set by a flat one.

    Raises:
        RequestError: a flat field and its equivalent are both set.
    """
    found, client_names = dict(fields), {}
    for flat in FLAT_FIELDS:
        value, name = getattr(params, flat.name), flat.stands_for
        if value is None:
            continue
        if name in fields:
            raise refuse(flat.name, f"says the same as {path}.{name}; give one of them")
        found[name] = flat.value_names.get(value, value) if isinstance(value, str) else value
        client_names[name] = flat.name
    if params.use_local_leap:
        if found.get("algorithm", "local_leap") != "local_leap":
            value = preview(found["algorithm"])
            raise refuse("use_local_leap", f"has no meaning with {path}.algorithm {value}, only with local_leap")
        found["algorithm"], client_names["algorithm"] = "local_leap", "use_local_leap"
    return found, client_names
