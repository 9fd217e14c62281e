"""Maps the uri of a model or an adapter to volumes, mounts and the location in the pod."""

from unmask_operator.api import Spec, SpecError
from unmask_operator.api.lora import Adapter
from unmask_operator.render.model_revision import VARIABLE

MODEL_MOUNT = "/mnt/model"  # mount path of the claim of a pvc:// model
CLAIMS_MOUNT = "/mnt/adapters"  # parent of the mount paths of claims with adapters


def volumes(spec: Spec) -> dict[str, str]:
    """Returns the PersistentVolumeClaims of the pods by volume name."""
    named = enumerate(spec.lora.claim_names if spec.lora else ())
    own = {"model": _on_claim(spec.model.uri)[0]} if spec.model.uri.startswith("pvc://") else {}
    return own | {f"adapters-{i}": claim for i, claim in named}


def mounts(spec: Spec) -> dict[str, str]:
    """Returns volume names by mount path. With adapters, each claim is also mounted by name, including the model's."""
    found = volumes(spec)
    by_name = {f"{CLAIMS_MOUNT}/{claim}": volume for volume, claim in found.items()} if spec.lora else {}
    return ({MODEL_MOUNT: "model"} if "model" in found else {}) | by_name


def model(spec: Spec) -> str | None:
    """Returns the value of ``--model``; None for demo://, the runtime's default.

    Raises:
        SpecError: the scheme is not supported by this version.
    """
    uri, revision = spec.model.uri, spec.model.revision
    match uri.partition("://")[0]:
        case "hf":
            return uri + (f"@{revision}" if revision else f"$({VARIABLE})")  # empty, or "@" and a commit
        case "pvc":
            return "/".join((MODEL_MOUNT, *_on_claim(uri)[1:]))
        case "demo":
            return None
        case scheme:
            raise SpecError(
                "spec.model.uri", f"{scheme}:// is not supported by this operator; use demo://, hf:// or pvc://"
            )


def adapter(lora_adapter: Adapter) -> str:
    """Returns the location of an adapter for the runtime, which rejects unknown schemes per adapter."""
    if lora_adapter.uri.startswith("pvc://"):
        return "/".join((CLAIMS_MOUNT, *_on_claim(lora_adapter.uri)))
    return lora_adapter.uri + (f"@{lora_adapter.revision}" if lora_adapter.revision else "")


def _on_claim(uri: str) -> list[str]:
    """Splits a pvc:// uri into the claim and the path components."""
    return uri.removeprefix("pvc://").rstrip("/").split("/")
