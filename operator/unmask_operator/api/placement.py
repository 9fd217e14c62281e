"""`spec.parallelism`, `spec.gpu`, `spec.resources`: the hardware of one pod."""

from typing import Annotated

from pydantic import Field

from unmask_operator.api.base import Quantity, Section

DEFAULT_GPU = "nvidia.com/gpu"


_Size = Annotated[int, Field(ge=1, le=64)]


class Parallelism(Section):
    """How many engines one pod runs, and on how many GPUs each: a pod gets tensor * data of them."""

    tensor: _Size = Field(
        default=1,
        description="GPUs that share one copy of the model, for one that does not fit a single GPU or is too slow on "
        "it. It must divide the model's attention heads and widths. (--tensor-parallel-size)",
    )
    data: _Size = Field(
        default=1, description="Engines in one pod, each with a copy of the model of its own. (--data-parallel-size)"
    )
    expert: _Size = Field(
        default=1,
        description="1: the GPUs of an engine share each expert's width. As large as tensor: they have whole experts "
        "each. (--expert-parallel-size)",
    )


class Gpu(Section):
    """GPUs. Present (it may be {}) makes the service a GPU service."""

    resource_name: Annotated[
        str, Field(min_length=3, max_length=128, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9][-A-Za-z0-9_.]*$")
    ] = Field(default=DEFAULT_GPU, description="Resource under which the cluster's nodes offer GPUs.")


ResourceMap = Annotated[dict[str, Quantity], Field(max_length=16)]


class Resources(Section):
    """CPU, memory and other resources of the engine's container; GPUs come from `gpu` and `parallelism`."""

    limits: ResourceMap = Field(default={}, description="The most the container may use.")
    requests: ResourceMap = Field(default={}, description="What the node must have free. Default: the limits.")
