"""`spec.model`: the checkpoint and the model id."""

from typing import Annotated

from pydantic import Field

from unmask_operator.api.base import Revision, SecretKeyRef, Section


class Model(Section):
    """The checkpoint."""

    uri: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="Location of the checkpoint: demo:// (the small model in the runtime's image), hf://ORG/NAME (a "
        "Hugging Face repository that each pod downloads) or pvc://CLAIM/PATH (a directory of a "
        "PersistentVolumeClaim in the resource's namespace, mounted read-only)."
    )
    revision: Revision | None = Field(
        default=None,
        description="Branch, tag or commit of an hf:// repository. Default: the commit of the main branch at the "
        "first start; a restart resolves it again.",
    )
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")] | None = Field(
        default=None, description="Model id for requests. Default: the resource's name."
    )
    family: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_]*$")] | None = Field(
        default=None, description="Model family (--model-name). Default: detected from the checkpoint."
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Access token for private hf:// repositories of the model and the adapters."
    )
