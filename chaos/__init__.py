"""Fault and load experiments with real processes, which check the guarantees on a local server or cluster."""
