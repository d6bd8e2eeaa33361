"""Templates that a tool evaluates, because they read names that only the tool defines.

`transfer` defines the name `chunk` for its targets, with a new value for every chunk. A template in a target that reads
it cannot be evaluated before the tool runs; all other templates are. A deferred template has a type of its own
(`DeferredTemplate`), so text from data that looks like a template is never evaluated. The result of an evaluated
template has the type `Rendered`: where a plain text would name something, such as a column in a mapping, it is a
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.templates.budget import MAX_TEXT, Meter, NondeterminismSource
from noetl.core.templates.template import Compiled, compile_value, is_template


class DeferredTemplate(str):
    """A template that a tool evaluates with names that it defines."""

    __slots__ = ()


class Rendered(str):
    """Text that a template has rendered."""

    __slots__ = ()


def compile_deferred(value: Any, late: frozenset[str]) -> Compiled:
    """Compile a value in which templates that read one of these names become a `DeferredTemplate`."""
    return compile_value(_leaving(value, late))


class _Left(Compiled):
    __slots__ = ("_text", "names")
    static = False

    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        self._text = DeferredTemplate(text)
        self.names = names

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        return self._text


class _Making(Compiled):
    __slots__ = ("_inner", "names")
    static = False

    def __init__(self, inner: Compiled) -> None:
        self._inner = inner
        self.names = inner.names

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        value = self._inner.evaluate(names, nondeterminism, max_text=max_text, meter=meter)
        return Rendered(value) if type(value) is str else value


def _leaving(value: Any, late: frozenset[str]) -> Any:
    if isinstance(value, str) and is_template(value):
        compiled = compile_value(value)
        own = tuple(name for name in compiled.names if name.partition(".")[0] not in late)
        return _Left(value, own) if len(own) < len(compiled.names) else _Making(compiled)
    if isinstance(value, Mapping):
        return {key: _leaving(each, late) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_leaving(each, late) for each in value]
    return value
