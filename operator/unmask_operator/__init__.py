"""The Kubernetes operator.

Its folder `operator/` is not a package, so that imports of `operator` still find Python's standard module.
"""
