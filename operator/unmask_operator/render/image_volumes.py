"""Image volumes. An API server without the feature drops them from pods, and accepts the rest without a word."""

from unmask_operator.objects import Obj

UNAVAILABLE = (
    "the API server drops image volumes: oci:// needs Kubernetes 1.35, or 1.33 with the feature gate ImageVolume; "
    "upgrade the cluster, or use hf:// or pvc://"
)


def dropped(sent: Obj, answer: Obj) -> bool:
    """Returns whether the answer of the API server lacks an image volume of the pods of a Deployment."""
    return bool(_images(sent) - _images(answer))


def _images(obj: Obj) -> set[str]:
    pod = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
    return {volume["name"] for volume in pod.get("volumes") or () if volume.get("image")}
