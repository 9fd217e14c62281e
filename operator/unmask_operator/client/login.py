"""Where the API server is and who we are there: kopf's login information, for kopf's watches and for our own client."""

from __future__ import annotations

from typing import Any

import kopf


def login(**_: Any) -> kopf.ConnectionInfo:
    """The pod's service account, or the kubeconfig of a developer (a certificate or a token; no exec plug-ins).

    It reads the token's file anew at each call, for the kubelet replaces it about once an hour.
    """
    settings = kopf.OperatorSettings()
    try:
        info = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    except (OSError, KeyError) as error:
        raise kopf.LoginError(f"the kubeconfig (KUBECONFIG) cannot be read: {error}") from error
    if not isinstance(info, kopf.ConnectionInfo):
        raise kopf.LoginError("found neither a service account's token (in a pod) nor a kubeconfig (KUBECONFIG)")
    return info
