"""Where a key of the grammar is valid, for the hint about one that is written in another place."""

from __future__ import annotations

from functools import cache

from noetl.core.language.syntax.grammar import SHAPES

_BESIDE = {"step": " beside `step`", "task": " beside `kind`", "arc": " in the arc"}
# Keys that are valid in many places, so that none of them is the one that was meant.
_COMMON = frozenset(
    ("name", "desc", "kind", "mode", "when", "then", "else", "set", "spec", "policy", "input", "output", "step", "tool")
)


def place_of_key(key: str, shape: str) -> str:
    """A hint that names the place of a key that the shape does not have; empty if it has no other place."""
    places = [] if key in _COMMON else _places().get(key, [])
    if not places:
        return ""
    owner = shape.partition(".")[0].replace("loop", "step")
    own = [place for place in places if place[0] == owner] or places
    root, path = min(own, key=lambda place: (place[1].count("."), place[1]))
    return f"write `{path}`{_BESIDE.get(root, '')}"


@cache
def _places() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for root, prefix in (("executor", "executor."), ("step", ""), ("task", ""), ("arc", "")):
        _walk(root, root, prefix, (root,), found)
    return found


def _walk(shape: str, root: str, prefix: str, above: tuple[str, ...], found: dict[str, list[tuple[str, str]]]) -> None:
    for name, key in SHAPES[shape].keys.items():
        if key.state == "canonical":
            found.setdefault(name, []).append((root, f"{prefix}{name}"))
            if key.type in ("shape", "any") and key.shape and key.shape not in above:
                _walk(key.shape, root, f"{prefix}{name}.", (*above, key.shape), found)
