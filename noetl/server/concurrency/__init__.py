"""Concurrency limits and the limiter that enforces them."""
