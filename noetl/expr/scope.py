"""The names a template is given: those of its place, then what bare names fall back to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Scope(Mapping[str, Any]):
    """Names first; a bare name that is not among them is looked for in the fallbacks, in order.

    The order is the language's: pipeline locals and the iterator's name belong to `names`; then come
    tasks, steps, `ctx` and `workload`.
    """

    __slots__ = ("fallbacks", "names")

    def __init__(self, names: Mapping[str, Any], *fallbacks: Mapping[str, Any]) -> None:
        self.names = names
        self.fallbacks = fallbacks

    def __getitem__(self, key: str) -> Any:
        try:
            return self.names[key]
        except KeyError:
            for fallback in self.fallbacks:
                if key in fallback:
                    return fallback[key]
            raise

    def __iter__(self) -> Iterator[str]:
        seen = dict.fromkeys(self.names)
        for fallback in self.fallbacks:
            seen |= dict.fromkeys(fallback)
        return iter(seen)

    def __len__(self) -> int:
        return sum(1 for _ in self)
