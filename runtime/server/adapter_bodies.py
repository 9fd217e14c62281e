"""Bodies of the routes that load and unload adapters."""

from __future__ import annotations

from typing import Annotated

from runtime.server.fields import Body, said


class LoadAdapterRequest(Body):
    """`lora_path`: a directory that the server sees, or ``hf://org/name[@revision]``."""

    lora_name: Annotated[str, said("what requests name as `model`", "roman")]
    lora_path: Annotated[
        str, said("a directory that the server sees, `hf://org/name[@revision]` or `demo://NAME`", "demo://roman")
    ]


class UnloadAdapterRequest(Body):
    lora_name: Annotated[str, said("what requests can name no more", "roman")]
