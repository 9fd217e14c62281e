"""`spec.model`: which checkpoint is served, and under which name."""

from typing import Annotated

from pydantic import Field

from unmask_operator.api.base import Revision, SecretKeyRef, Section


class Model(Section):
    """The checkpoint."""

    uri: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="Where the checkpoint is: demo:// (the small model inside the runtime's image), hf://ORG/NAME (a "
        "repository of the Hugging Face hub, downloaded by each pod) or pvc://CLAIM/PATH (a directory of a "
        "PersistentVolumeClaim in the resource's namespace, mounted read-only)."
    )
    revision: Revision | None = Field(
        default=None,
        description="Branch, tag or commit of an hf:// repository. Default: the commit that the main branch has at "
        "the first start, until a restart.",
    )
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")] | None = Field(
        default=None, description="Id under which clients ask for the model. Default: the resource's name."
    )
    family: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_]*$")] | None = Field(
        default=None, description="Model family, as the runtime's --model-name. Default: read from the checkpoint."
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Access token for private hf:// repositories, the model's and adapters'."
    )
