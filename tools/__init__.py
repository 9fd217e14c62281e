"""Tools for developers and tests. No image and no distribution contains them."""
