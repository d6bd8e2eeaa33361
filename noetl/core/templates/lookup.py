"""Attribute and item lookup of templates (`a.b`, `a[b]`), and undefined values.

An item has precedence over a method, so `workload.items` is the key `items`. Python attributes are never read: a
mapping has its keys, a list its indices, a view its fields, and text, lists and mappings have the methods in the tables
of `functions`. So a template cannot reach Python objects and leave the sandbox.

A name that does not exist is an `Undefined`: reading a field of it returns it again, so `a.b.c | default(1)` works
if `a.b` is missing; using it is an error that names the first missing part and the names that exist. A
`Missing` (a step that has not run, `output.error` without an error) is false, equal to none and to nothing else, and
also an error when it is used as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from jinja2 import StrictUndefined
from jinja2.runtime import LoopContext
from jinja2.utils import Cycler, Namespace

from noetl.core.model.excerpt import excerpt
from noetl.core.model.text_matching import MAX_COMPARED, close_match
from noetl.core.templates.budget import EvaluationBudget, Measured
from noetl.errors import TemplateError

_LOOP_FIELDS = frozenset(
    [
        *("index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"),
        *("depth", "depth0", "cycle", "changed"),
    ]
)
_CYCLER_FIELDS = frozenset(["current", "next", "reset"])
_REFERENCE_TYPES = frozenset(["relational", "nats", "object_store", "blob"])


_UNKNOWN: Any = object()
MAX_PATH = 200  # characters to which a missing field adds its name


class Undefined(StrictUndefined):
    """A name or field that does not exist; using it is an error.

    `path` is the dotted name as far as it is known, `container` the value in which the last part was looked up,
    `hint` the message if the problem is not a missing key.
    """

    __slots__ = ("container", "hint", "path")

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = None,
        name: Any = None,
        exc: Any = None,
        *,
        path: str | None = None,
        container: Any = _UNKNOWN,
    ) -> None:
        self._undefined_name = name  # the base's own fields are for its messages, which are not used
        self.hint = hint
        self.path = path
        self.container = container

    @property
    def key(self) -> Any:
        """The part of the name that was not found."""
        return self._undefined_name

    def fail(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error for using it."""
        raise UndefinedUse(self)

    def message(self) -> str:
        """Describe what is missing and what exists instead."""
        if self.hint:
            return self.hint
        key = key_text(self.key)
        name = self.path or key
        owner = name.rpartition(".")[0]
        where = f'"{owner}"' if owner else "the value"
        container = self.container
        if container is None:
            return f'"{name}" cannot be read: {where} is none'
        if isinstance(self.key, int) and isinstance(container, (list, tuple, str, range)):
            return f'"{name}" does not exist: {where} has {len(container)} elements, and indexes start at 0'
        if isinstance(container, (View, Mapping)):
            return f'"{name}" is not defined here{_beside(container, key, self.path, owner)}'
        if container is _UNKNOWN:
            return f'"{name}" is not defined here'
        return f'"{name}" cannot be read: {where} is {kind_of(container)}, which has no "{key}"'


def key_text(key: Any) -> str:
    """The text of a key for a message and a path; the text of nested data may be much longer than the data."""
    return key if isinstance(key, str) else excerpt(key).strip('"')


class UndefinedUse(TemplateError):
    """An undefined value was used."""

    def __init__(self, undefined: Undefined) -> None:
        super().__init__(undefined.message())
        self.undefined = undefined

    def named(self, path: str) -> UndefinedUse:
        """Return the same problem with the full name."""
        self.undefined.path = path
        self.message = self.undefined.message()
        self.args = (self.message,)
        return self


# Every operator, loop and call uses an undefined value.
for _operator in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
    *("pow", "rpow", "pos", "neg", "int", "float", "complex", "index", "lt", "le", "gt", "ge", "eq", "ne", "hash"),
    *("bool", "str", "len", "iter", "contains", "getitem", "call"),
):
    setattr(Undefined, f"__{_operator}__", Undefined.fail)


class Missing(Undefined):
    """A value that does not exist yet: false, equal to none only, and so are its fields; not usable as a value."""

    __slots__ = ()

    def __init__(self, path: str = "", why: str = "") -> None:
        super().__init__(path=path, name=path, container=why)

    def message(self) -> str:
        """Describe why there is no value, and what to do."""
        why = self.container or "it does not exist yet"
        return f'"{self.path}" has no value: {why}; test it with "is defined", or use default(...)'

    def field(self, key: Any) -> Missing:
        """Return a field, which is missing as well."""
        path = self.path or ""
        if len(path) < MAX_PATH and isinstance(key, (str, int)):
            path = f"{path}.{key}" if isinstance(key, str) and len(key) < MAX_PATH else f"{path}[{excerpt(key)}]"
        return Missing(path, self.container)

    def __bool__(self) -> bool:  # type: ignore[override]
        return False

    # Playbooks compare `output.error.kind == 'rate_limit'` without testing for an error first.
    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return other is None or isinstance(other, Missing)

    def __ne__(self, other: object) -> bool:  # type: ignore[override]
        return not self.__eq__(other)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(None)


class Group(NamedTuple):
    """One group of `groupby`: `group.grouper` and `group.list`, or both in `for city, people in ...`."""

    grouper: Any
    list: Any


class View(Measured):
    """Base of objects that templates read instead of plain data: fields, and a value as a whole."""

    __slots__ = ()

    def field(self, key: Any) -> Any:
        """Return the value of `view.key`, or an Undefined."""
        raise LookupError(key)

    def fields(self) -> list[str]:
        """Return the names of the fields, for error messages."""
        return []

    def value(self) -> Any:
        """Return the view as plain data."""
        raise LookupError("value")

    def weight(self, budget: EvaluationBudget, depth: int) -> int:
        """Return the weight of the value, which operators use instead of the view."""
        return budget.whole_weight(self.value(), depth + 1)

    # Operators and loops use the value of a view.
    def __bool__(self) -> bool:
        return bool(self.value())

    def __str__(self) -> str:
        return str(self.value())

    def __len__(self) -> int:
        return len(self.value())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value())

    def __contains__(self, item: Any) -> bool:
        return unwrap(item) in self.value()

    def __eq__(self, other: object) -> bool:
        return bool(self.value() == unwrap(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.value() != unwrap(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self.value() < unwrap(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.value() <= unwrap(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.value() > unwrap(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.value() >= unwrap(other))

    def __hash__(self) -> int:
        return hash(self.value())


def unwrap(value: Any) -> Any:
    """Return the data of a view; raise for an undefined value."""
    if isinstance(value, View):
        return value.value()
    if isinstance(value, Undefined):
        value.fail()
    return value


def lookup(obj: Any, key: Any) -> Any:
    """Evaluate `obj.key` or `obj[key]`."""
    if type(obj) is dict and type(key) is not tuple:
        try:
            return obj[key]
        except KeyError:
            return no_such_key(obj, key)
        except TypeError:
            return _lookup(obj, key)
    return _lookup(obj, key)


def _lookup(obj: Any, key: Any) -> Any:
    if isinstance(key, (View, Undefined)):
        key = unwrap(key)
    if isinstance(obj, Missing):
        return obj.field(key)
    if isinstance(obj, Undefined):
        return obj
    if isinstance(key, (tuple, list, Mapping)):
        raise TemplateError(f"{kind_of(key)} cannot be a key of a mapping")
    if isinstance(obj, View):
        return obj.field(key)
    if isinstance(obj, Mapping):
        try:
            return obj[key]
        except KeyError:
            return no_such_key(obj, key)
        except TypeError:
            raise TemplateError(f"{kind_of(key)} cannot be a key of a mapping") from None
    if isinstance(obj, (list, tuple, str, range)) and isinstance(key, int):
        try:
            return obj[key]
        except IndexError:
            return Undefined(name=key, container=obj)
    if isinstance(key, str):
        if isinstance(obj, Group) and key in Group._fields:
            return getattr(obj, key)
        method = method_of(obj, key)
        if method is not None:
            return method
        if _runtime_field(obj, key):
            return getattr(obj, key)
    return Undefined(name=key, container=obj)


def _runtime_field(obj: Any, key: str) -> bool:
    """Whether one of Jinja's helper objects has that field."""
    if isinstance(obj, LoopContext):
        return key in _LOOP_FIELDS
    if isinstance(obj, Cycler):
        return key in _CYCLER_FIELDS
    if isinstance(obj, Namespace):
        return not key.startswith("_") and key in namespace_fields(obj)
    return False


def namespace_fields(namespace: Namespace) -> dict[str, Any]:
    """Return the fields of a `namespace()`."""
    held: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return held


def no_such_key(obj: Mapping[Any, Any], key: Any) -> Any:
    """Return the method or the Undefined for a key that a mapping does not have; raise for a reference."""
    if isinstance(key, str):
        method = method_of(obj, key)
        if method is not None:
            return method
        if "locator" in obj and is_reference(obj):
            raise TemplateError(
                f'"{key}" cannot be read from a reference, which is the location of a payload and not the payload; '
                "fetch it with a task of `kind: resolve` and read that task's output"
            )
    return Undefined(name=key, container=obj)


# Set by `functions`, which imports this module: (object, name) -> bound method or None.
method_of: Callable[[Any, str], Any] = lambda obj, name: None  # noqa: E731


NO_ELEMENTS = (
    "a reference is the location of a payload and has no elements; fetch the payload with a task of `kind: resolve` "
    "and iterate over that task's output, or read the step that created it by its name"
)


def is_reference(value: Any) -> bool:
    """Whether plain data has the shape of a stored payload's reference."""
    return (
        isinstance(value, Mapping)
        and value.get("type") in _REFERENCE_TYPES
        and isinstance(value.get("locator"), Mapping)
        and "meta" in value
    )


_KINDS: dict[type, str] = {
    str: "text",
    bool: "true/false",
    int: "a whole number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
    tuple: "a list",
    range: "a range",
    type(None): "none",
    Namespace: "a namespace",
    LoopContext: "loop",
}


def kind_of(value: Any, *, article: bool = True) -> str:
    """Return the name of a value's type in the template language."""
    if isinstance(value, View):
        value = value.value()
    word: str | None = _KINDS.get(type(value)) or getattr(value, "KIND", None)
    if word is None:
        word = "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"
    return word if article else word.removeprefix("a ").removeprefix("whole ")


def _beside(container: Any, key: str, path: str | None, owner: str) -> str:
    """`; ctx has: total, ids; did you mean "ctx.total"?` for a missing field."""
    keys = container.fields() if isinstance(container, View) else container
    names = [str(each) for each in islice(keys, MAX_COMPARED)]
    close = close_match(key, names, 0.7)
    guess = f'; did you mean "{owner + "." if owner else ""}{close}"?' if close else ""
    listed = ", ".join(each[:80] for each in names[:20]) + (f", ... ({len(keys)} in all)" if len(keys) > 20 else "")
    if owner:
        return f"; {owner} has: {listed}{guess}" if names else f"; {owner} is empty"
    if path is None:
        return f"; the value has: {listed}{guess}" if names else "; the value is empty"
    return f"; known names: {listed}{guess}" if names else "; no names are known here"
