"""Tables of the checks in this folder: each row is a check with the arguments before its dtype and device."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

ALL = (torch.float32, torch.float16, torch.bfloat16)
NO_DTYPE = (None,)  # for checks that have no such argument


def table(
    name: str, check: Callable[..., None], dtypes: Iterable[torch.dtype | None], *cases: tuple[Any, ...], **own: Any
) -> list[Any]:
    """Returns pytest parameters (check, arguments before the device, arguments by name): every case in every dtype."""
    made = []
    for case in cases:
        for dtype in dtypes:
            label = "-".join([name, *(str(value) for value in (*case, *own.values()) if isinstance(value, int | str))])
            arguments = case if dtype is None else (*case, dtype)
            made.append(pytest.param(check, arguments, own, id=f"{label}-{str(dtype).removeprefix('torch.')}"))
    return made
