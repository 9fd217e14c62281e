"""Renders the children of a resource, as dictionaries without owner references."""

from collections.abc import Mapping

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj
from unmask_operator.render import adapters, autoscaling, children, devices, model_cache, route
from unmask_operator.render.model import config_map
from unmask_operator.render.revision import Revision, controller_revision
from unmask_operator.render.workload import workload
from unmask_operator.settings import Settings


def render(
    resource: DiffusionLMService, settings: Settings, revision: Revision | None, commits: Mapping[str, str]
) -> list[Obj]:
    """Renders all children in creation order: the objects that pods need precede the workload.

    Args:
        resource: the parsed resource.
        settings: the operator's settings.
        revision: holds the pod template. Its ControllerRevision precedes the workload. None: neither exists yet.
        commits: resolved commits of hf:// models, by key.
    """
    rendered = [
        children.serviceaccount(resource),
        model_cache.claim(resource),
        controller_revision(resource, revision) if revision else None,
        config_map(resource, commits),
        adapters.config_map(resource),
        devices.claim_template(resource),
        children.networkpolicy(resource, settings),
        children.service(resource),
        workload(resource, revision.rendered_pod) if revision else None,
        children.pdb(resource),
        autoscaling.hpa(resource),
        children.podmonitor(resource),
        route.inferencepool(resource),
        route.httproute(resource, revision.rendered_pod.template) if revision else None,
    ]
    return [child for child in rendered if child]
