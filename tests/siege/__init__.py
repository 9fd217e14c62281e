"""Attacks a server and measures how other clients are affected: ``python -m tests.siege`` (``make siege``).

Each attack runs on a fresh server with the demo model. It is measured from outside: memory, the longest wait for
``/health``, the requests of an innocent client, descriptors, log lines, processes. Loopback only.
"""
