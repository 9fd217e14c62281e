"""A server under attack, and what it costs the others: ``python -m tests.siege`` (``make siege``).

Each attack is tried on a fresh server with the demo model, and what matters is measured from outside: memory, the
longest wait for ``/health``, an innocent client's requests, descriptors, log lines, processes. Loopback only.
"""
