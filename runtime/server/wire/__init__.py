"""Between a TCP connection and the ASGI application: requests parsed, bounded, timed and answered in their order."""
