"""The API server over aiohttp, and what was last seen of it. Nothing here knows of plans."""
