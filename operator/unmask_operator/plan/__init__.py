"""Observed state, planned children, and drift detection, as plain data without API calls."""
