"""What is observed of a resource, what is planned for it, and how a live object differs from it: plain data."""
