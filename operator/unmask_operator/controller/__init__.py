"""The controller: resync, queue and workers, and each step of one reconcile. It runs in the pod that leads."""
