"""What any operator process has, whoever leads: the Lease, the probes, metrics, logs."""
