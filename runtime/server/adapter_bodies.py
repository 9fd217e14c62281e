"""Bodies of the routes that load and unload adapters."""

from __future__ import annotations

from typing import Annotated

from runtime.server.fields import RequestModel, api_field


class LoadAdapterRequest(RequestModel):
    """`lora_path`: a directory that the server sees, or ``hf://org/name[@revision]``."""

    lora_name: Annotated[str, api_field("what requests name as `model`", "roman")]
    lora_path: Annotated[
        str, api_field("a directory that the server sees, `hf://org/name[@revision]` or `demo://NAME`", "demo://roman")
    ]


class UnloadAdapterRequest(RequestModel):
    lora_name: Annotated[str, api_field("what requests can name no more", "roman")]
