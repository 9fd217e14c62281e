"""`spec.model`: which checkpoint is served, and under which name."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import Field

from unmask_operator.api.base import Rule, SecretKeyRef, Section

_HUB = r"hf://[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*"
_CLAIM = r"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*/?"
URI = rf"^(demo://|{_HUB}|{_CLAIM})$"


class Model(Section):
    """The checkpoint."""

    rules: ClassVar = (
        Rule(
            f"self.uri.matches('{URI}')",
            lambda model: re.fullmatch(URI, model.uri) is not None,
            "must be demo://, hf://ORG/NAME or pvc://CLAIM/PATH; a hub revision goes into model.revision",
            "uri",
        ),
        Rule(
            "!has(self.revision) || self.uri.startsWith('hf://')",
            lambda model: model.revision is None or model.uri.startswith("hf://"),
            "only a model of the hub (hf://) has revisions; remove it",
            "revision",
        ),
        Rule(
            "!has(self.tokenSecretRef) || self.uri.startsWith('hf://')",
            lambda model: model.token_secret_ref is None or model.uri.startswith("hf://"),
            "only a model of the hub (hf://) is downloaded with a token; remove it",
            "tokenSecretRef",
        ),
    )

    uri: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="Where the checkpoint is: demo:// (the small model inside the runtime's image), hf://ORG/NAME (a "
        "repository of the Hugging Face hub, downloaded by each pod) or pvc://CLAIM/PATH (a directory of a "
        "PersistentVolumeClaim in the resource's namespace, mounted read-only)."
    )
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")] | None = (
        Field(
            default=None,
            description="Branch, tag or commit of an hf:// repository. Default: the commit that the main branch has at "
            "the first start, until a restart.",
        )
    )
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")] | None = Field(
        default=None, description="Id under which clients ask for the model. Default: the resource's name."
    )
    family: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_]*$")] | None = Field(
        default=None, description="Model family, as the runtime's --model-name. Default: read from the checkpoint."
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Access token for a private hf:// repository."
    )
