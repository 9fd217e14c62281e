"""Kubernetes clusters for tests: an API server that starts within seconds, or a complete node that runs real pods.

In a shell use `python -m e2e.cluster up` and `down`, in Python `start_api_server`. See e2e/README.md.
"""

from e2e.cluster.api_server import ApiServer, external_api_server, start_api_server
from e2e.cluster.kube import ApiError, Kube

__all__ = ["ApiError", "ApiServer", "Kube", "external_api_server", "start_api_server"]
