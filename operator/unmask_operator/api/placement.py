"""`spec.parallelism`, `spec.gpu`, `spec.resources`: the hardware of one pod."""

from typing import Annotated

from pydantic import Field

from unmask_operator.api.base import Quantity, Section

DEFAULT_GPU = "nvidia.com/gpu"


_Size = Annotated[int, Field(ge=1, le=64)]


class Parallelism(Section):
    """Parallelism within a pod, which gets tensor * data GPUs."""

    tensor: _Size = 1
    """Tensor parallel size: number of GPUs per engine, for a model that is too large or too slow on one GPU. Must
    divide the model's attention heads and hidden sizes. (--tensor-parallel-size)"""
    data: _Size = 1
    """Data parallel size: number of engines per pod, each with its own copy of the model. (--data-parallel-size)"""
    expert: _Size = 1
    """Expert parallel size. 1: every expert is sharded across the GPUs of an engine. Equal to tensor: each GPU holds
    complete experts. (--expert-parallel-size)"""


class Gpu(Section):
    """GPUs of the pods. The engine uses GPUs if this section is present ({} is enough)."""

    resource_name: Annotated[
        str, Field(min_length=3, max_length=128, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9][-A-Za-z0-9_.]*$")
    ] = DEFAULT_GPU
    """Extended resource name of the cluster's GPUs."""


ResourceMap = Annotated[dict[str, Quantity], Field(max_length=16)]


class Resources(Section):
    """CPU, memory and other resources of the engine's container. `gpu` and `parallelism` set its GPUs."""

    limits: ResourceMap = Field(default={})
    """Maximum resources of the container."""
    requests: ResourceMap = Field(default={})
    """Resources that the scheduler reserves on the node. Default: the limits."""
