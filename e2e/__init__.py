"""Tests against real clusters, and the clusters themselves (`e2e.cluster`)."""
