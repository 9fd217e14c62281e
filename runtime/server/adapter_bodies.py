"""Bodies of the routes that load and unload adapters."""

from __future__ import annotations

from runtime.server.fields import Body


class LoadAdapterRequest(Body):
    """`lora_path`: a directory that the server sees, or ``hf://org/name[@revision]``."""

    lora_name: str
    lora_path: str


class UnloadAdapterRequest(Body):
    lora_name: str
