"""The controller of the leader: resync, work queue, workers, and each step of a reconcile."""
