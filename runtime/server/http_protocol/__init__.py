"""The HTTP protocol of the server: uvicorn's, with limits on what a connection may take."""
