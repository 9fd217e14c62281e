"""`spec.modelCache`: the volume of downloaded models, one per pod or one claim of all pods."""

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.base import ObjectName, Quantity, Section
from unmask_operator.api.pod import EmptyDir, Resources

DEFAULT_MODES = ["ReadWriteMany"]
_Component = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_Class = Annotated[str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
_Modes = Annotated[list[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]], Field(min_length=1, max_length=3)]
_Path = Annotated[str, Field(max_length=512, pattern=rf"^{_Component}(/{_Component})*$")]


class ModelClaim(Section):
    """A PersistentVolumeClaim with one copy of the model for all pods: an existing one, or one of this size."""

    claim_name: ObjectName | None = None
    """An existing claim in the resource's namespace. Nothing in it is removed."""
    size: Quantity | None = None
    """Size of the claim NAME-models, which the operator creates. It is deleted with the resource. It must have space
    for the model twice if another revision is to be downloaded while pods use the first."""
    storage_class_name: _Class | None = None
    """Storage class of the claim. Immutable. Default: the cluster's default."""
    access_modes: _Modes | None = None
    """Access modes of the claim. Immutable. Pods on several nodes need ReadWriteMany. Default: ReadWriteMany."""
    sub_path: _Path | None = None
    """Directory in the claim. Default: its root."""


class Fetch(Section):
    """The Job that downloads the model."""

    resources: Resources = Resources()
    """Resources of the Job's container. Default: requests of 1 CPU and 2Gi of memory."""
    timeout_seconds: Annotated[int, Field(ge=60, le=604_800)] = 21_600
    """Seconds after which the Job fails."""


class ModelCache(Section):
    """Cache of downloaded models."""

    empty_dir: EmptyDir = EmptyDir()
    """Cache in an emptyDir volume, with the lifetime of the pod, which downloads the model itself. This is the
    default."""
    pvc: ModelClaim | None = None
    """One copy of an hf://, s3:// or gs:// model for all pods. A Job downloads it before pods start, and the pods mount
    it read-only. Needs modelCache.enabled of the operator's chart."""
    fetch: Fetch = Fetch()
    """The Job that downloads the model. Only with pvc."""
