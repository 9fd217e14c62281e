"""The client of the API server, and the cache of its objects."""
