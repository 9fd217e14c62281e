"""Rendering: the children of a resource, as plain objects without owners."""

from collections.abc import Mapping

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj
from unmask_operator.render import adapters, children
from unmask_operator.render.model_revision import config_map
from unmask_operator.render.revision import Pin, revision
from unmask_operator.render.workload import deployment
from unmask_operator.settings import Settings


def render(service: DiffusionLMService, settings: Settings, pin: Pin, commits: Mapping[str, str]) -> list[Obj]:
    """The children that the spec asks for, in the order of their creation: what pods need comes before them.

    Pods are made from `pin`; the ControllerRevision that keeps it is created before the workload that follows it.
    `commits` is what hub models were resolved to, by key.
    """
    wanted = [
        children.serviceaccount(service),
        revision(service, pin),
        config_map(service, commits),
        adapters.config_map(service),
        children.networkpolicy(service, settings),
        children.service(service),
        deployment(service, pin.form.template),
        children.pdb(service),
        children.hpa(service),
        children.podmonitor(service),
    ]
    return [child for child in wanted if child]
