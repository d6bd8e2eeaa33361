"""Scores a customer; loaded by script.yaml."""

import statistics


def main(amounts: list[float]) -> dict[str, float]:
    """The mean and the largest amount."""
    return {"mean": statistics.mean(amounts), "largest": max(amounts)}
