"""The Kubernetes operator. Its folder `operator/` is no package, so that Python's own `operator` module still wins."""
