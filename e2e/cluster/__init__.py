"""Kubernetes clusters for tests: an API server in seconds, or one whole node with real pods.

`python -m e2e.cluster up` and `down` from a shell; `start_api_server` from Python. See e2e/README.md.
"""

from e2e.cluster.api_server import ApiServer, external_api_server, start_api_server
from e2e.cluster.kube import ApiError, Kube

__all__ = ["ApiError", "ApiServer", "Kube", "external_api_server", "start_api_server"]
