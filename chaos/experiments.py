"""The experiments by name, each a function of `quick` that returns a Finding."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from chaos.findings import Finding


class Experiment(Protocol):
    """Injects faults or load and checks the results."""

    def __call__(self, *, quick: bool) -> Finding:
        """Run the experiment."""


def _lazy(module: str, name: str = "experiment") -> Experiment:
    def run(*, quick: bool) -> Finding:
        function: Callable[..., Finding] = getattr(import_module(f"chaos.{module}"), name)
        return function(quick=quick)

    return cast(Experiment, run)


def _transfer(load: tuple[str, str, str]) -> Experiment:
    return lambda *, quick: import_module("chaos.transfers").experiment(load, quick=quick)


TRANSFERS = (  # source, target, mode
    ("http", "postgres", "upsert"),
    ("http", "postgres", "append"),
    ("http", "duckdb", "append"),
    ("postgres", "postgres", "upsert"),
    ("postgres", "duckdb", "upsert"),
    ("postgres", "duckdb", "append"),
    ("postgres", "sqlite", "append"),
)
CHAOS: dict[str, Experiment] = {
    "kills": _lazy("kills"),
    "sagas": _lazy("sagas"),
    "rolling": _lazy("kills", "rolling"),
    "restarts": _lazy("restarts"),
    "zombies": _lazy("zombies"),
    "once": _lazy("once"),
    "once-cluster": _lazy("once", "cluster"),
    "once-run": _lazy("once", "embedded"),
    "flush": _lazy("flush"),
    "disk": _lazy("disk"),
    "network": _lazy("network"),
    "nodes": _lazy("nodes"),
    "poison": _lazy("poison"),
    "access": _lazy("access"),
    "waiting": _lazy("waiting"),
    **{f"transfers-{'-'.join(load)}": _transfer(load) for load in TRANSFERS},
}
LOAD: dict[str, Experiment] = {
    "burst": _lazy("load", "burst"),
    "wide": _lazy("load", "wide"),
    "footprint": _lazy("load", "footprint"),
    "soak": _lazy("soak"),
}
