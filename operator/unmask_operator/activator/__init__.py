"""The activator: holds the requests of DiffusionLMServices that sleep at 0 replicas, and wakes them.

It reads only the head of a request. When a pod is Ready, it copies the bytes of the connection in both directions.
"""
