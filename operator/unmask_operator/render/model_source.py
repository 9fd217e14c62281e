"""Where the engine finds what a uri of the spec names: a model, an adapter."""

from unmask_operator.api import Spec, SpecError
from unmask_operator.api.lora import Adapter
from unmask_operator.render.model_revision import VARIABLE

MODEL_MOUNT = "/mnt/model"  # of the claim of a pvc:// model
CLAIMS_MOUNT = "/mnt/adapters"  # below it are the claims that adapters lie on, each under its name


def volumes(spec: Spec) -> dict[str, str]:
    """The claims of the pods, by their volumes' names."""
    named = enumerate(spec.lora.claim_names if spec.lora else ())
    own = {"model": _on_claim(spec.model.uri)[0]} if spec.model.uri.startswith("pvc://") else {}
    return own | {f"adapters-{i}": claim for i, claim in named}


def mounts(spec: Spec) -> dict[str, str]:
    """The volumes by the paths where they are mounted. Adapters find every claim, the model's own too, by its name."""
    found = volumes(spec)
    by_name = {f"{CLAIMS_MOUNT}/{claim}": volume for volume, claim in found.items()} if spec.lora else {}
    return ({MODEL_MOUNT: "model"} if "model" in found else {}) | by_name


def model(spec: Spec) -> str | None:
    """``--model``: None for demo://, which the runtime serves without that flag. SpecError for a scheme that only
    another version knows."""
    uri, revision = spec.model.uri, spec.model.revision
    match uri.partition("://")[0]:
        case "hf":
            return uri + (f"@{revision}" if revision else f"$({VARIABLE})")  # empty, or "@" and a commit
        case "pvc":
            return "/".join((MODEL_MOUNT, *_on_claim(uri)[1:]))
        case "demo":
            return None
        case scheme:
            raise SpecError("spec.model.uri", f"this operator knows demo://, hf:// and pvc://, and not {scheme}://")


def adapter(lora_adapter: Adapter) -> str:
    """As the runtime takes it. A scheme that only another version knows is its to refuse, for that adapter alone."""
    if lora_adapter.uri.startswith("pvc://"):
        return "/".join((CLAIMS_MOUNT, *_on_claim(lora_adapter.uri)))
    return lora_adapter.uri + (f"@{lora_adapter.revision}" if lora_adapter.revision else "")


def _on_claim(uri: str) -> list[str]:
    """The claim of a pvc:// uri and the names that lead to a directory on it."""
    return uri.removeprefix("pvc://").rstrip("/").split("/")
