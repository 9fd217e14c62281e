"""Small stand-ins for what a cluster has around it. Scripts of the standard library alone, run in pods."""
