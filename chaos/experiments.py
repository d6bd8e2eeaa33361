"""The experiments by name, each a function of `quick` that gives a Finding."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from chaos.findings import Finding


class Experiment(Protocol):
    """Something that harms and judges."""

    def __call__(self, *, quick: bool) -> Finding:
        """What it found."""


def _later(module: str, name: str = "experiment") -> Experiment:
    def run(*, quick: bool) -> Finding:
        found: Callable[..., Finding] = getattr(import_module(f"chaos.{module}"), name)
        return found(quick=quick)

    return cast(Experiment, run)


CHAOS: dict[str, Experiment] = {
    "kills": _later("kills"),
    "rolling": _later("kills", "rolling"),
    "restarts": _later("restarts"),
    "zombies": _later("zombies"),
    "flush": _later("flush"),
    "disk": _later("disk"),
    "network": _later("network"),
    "poison": _later("poison"),
    "access": _later("access"),
}
LOAD: dict[str, Experiment] = {
    "burst": _later("load", "burst"),
    "wide": _later("load", "wide"),
    "footprint": _later("load", "footprint"),
}
