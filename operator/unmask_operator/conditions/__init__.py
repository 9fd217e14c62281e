"""The conditions of a resource, one file each: a Verdict of what is known, or None where it does not apply."""
