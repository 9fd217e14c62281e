"""Explains the status of pods and containers, with the Events of pods where the status does not suffice."""
