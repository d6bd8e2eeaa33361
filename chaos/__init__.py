"""Experiments with real processes: what the guarantees promise, tried on a cluster of this machine."""
