"""Requests to the API server, and the cache of what it returned last. Nothing here knows of plans."""
