"""Waits for permissions on a real API server, whose authorizer receives roles, bindings and labels through watches."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.cluster.kube import ApiError, Kube

API = "authorization.k8s.io"


def wait_allowed(
    admin: Kube, user: str, verb: str, *, group: str, resource: str, namespace: str = "", groups: Sequence[str] = ()
) -> None:
    """Waits until the authorizer allows `user` this verb, in one namespace or in the whole cluster."""
    plural, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": namespace}
    spec = {"user": user, "groups": list(groups), "resourceAttributes": attributes}
    review = {"apiVersion": f"{API}/v1", "kind": "SubjectAccessReview", "spec": spec}
    path = f"/apis/{API}/v1/subjectaccessreviews"
    admin.wait(f"{user} may {verb} {resource}", lambda: admin.request("POST", path, review)["status"].get("allowed"))


def restrict(admin: Kube, namespace: str) -> None:
    """Sets the label of the restricted level on the namespace and waits until privileged pods are rejected."""
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    admin.patch({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, level)
    containers = [{"name": "main", "image": "any", "securityContext": {"privileged": True}}]
    meta = {"name": "privileged", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}}

    def refused() -> bool:
        try:
            admin.create(pod, dryRun="All")
        except ApiError as error:
            return "restricted" in error.message
        return False

    admin.wait("the restricted level is enforced", refused)
