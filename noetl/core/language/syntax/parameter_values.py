"""Check the values of a tool's parameters against the fields that its kind declares, at every depth.

Reported are required fields that are missing, empty or null, values of a wrong type, unknown members of closed sets,
and keys that are not declared. Templates are checked at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.source.node_reader import Reader, describe_node, is_template, shorten, with_article
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.model.tool import PLUGIN_SIDES, Field, FieldType, Members, ToolSpec, install_hint, out_of_range


class Given(NamedTuple):
    """A parameter as it is written."""

    key: Scalar
    value: Node


def field_names(declared: ToolSpec | Members) -> dict[str, str]:
    """Every accepted spelling of the fields -> the field."""
    names = {alias: field for field, known in declared.fields.items() for alias in known.aliases}
    names.update({field: field for field in declared.fields})
    return names


def is_missing(node: Node) -> bool:
    """Whether a value is null or empty."""
    if isinstance(node, Scalar):
        return node.value is None or (isinstance(node.value, str) and not node.value.strip())
    if isinstance(node, Mapping):
        return not node.entries and not node.broken
    return isinstance(node, Sequence) and not node.items


def check_required(
    reader: Reader, declared: ToolSpec | Members, given: dict[str, Given], owner: str, where: Node
) -> None:
    """Report each required field (or group of fields) that is missing, empty or null."""
    reported: set[str] = set()
    for group in _required_groups(declared, given):
        names = group if len(group) > 1 else (group[0],)
        if any(_is_given(name, given) for name in names) or reported & set(names):
            continue
        reported |= set(names)
        empty = next((given[name] for name in names if name in given), None)
        if empty is not None and _has_wrong_type(declared, names, empty):
            continue  # reported as such
        if empty is not None:
            message = f"`{empty.key.text}` of {owner} is {_empty_value(empty.value)}"
            reader.add("missing-parameter", empty.value, message, _advice(declared, names[0]))
        else:
            words = [f'"{name}"' for name in names if "[" not in name]
            joined = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
            reader.add("missing-parameter", where, f"{owner} requires {joined}", _advice(declared, names[0]))


def check_alternatives(reader: Reader, spec: ToolSpec | Members, given: dict[str, Given], owner: str) -> None:
    """Report fields that are given together although only one of them can be used."""
    reported: set[str] = set()

    def used(name: str) -> bool:
        value = given[name].value if name in given else None
        if value is None or is_missing(value):
            return False
        known = spec.fields[name]
        untyped = known.type == "any" and not known.accepts
        return untyped or is_template(value) or has_type(value, known)

    exclusive = spec.exclusive if isinstance(spec, ToolSpec) else ()
    for code, groups in (("parameter-twice", spec.alternatives), ("parameter-type", exclusive)):
        for group in groups:
            first, *others = [name for name in group if used(name)] or [""]
            for name in others:
                if name in reported:
                    continue
                reported.add(name)
                hint = f"remove one of them; `{first}` is used" if code == "parameter-twice" else "remove one of them"
                message = f"{owner} has both `{given[first].key.text}` and `{given[name].key.text}`"
                reader.add(code, given[name].key, message, hint)


def _has_wrong_type(declared: ToolSpec | Members, names: tuple[str, ...], empty: Given) -> bool:
    types = {declared.fields[name].type for name in names if name in declared.fields}
    return isinstance(empty.value, Scalar) and empty.value.value is not None and types <= {"mapping", "list"}


def _required_groups(declared: ToolSpec | Members, given: dict[str, Given]) -> Iterator[tuple[str, ...]]:
    for name, known in declared.fields.items():
        if known.required:
            yield (name,)
    yield from declared.requires
    for name, by_value in declared.required_by.items():
        chosen = given[name].value if name in given and not is_missing(given[name].value) else None
        if is_template(chosen):
            continue
        value = chosen.text.lower() if isinstance(chosen, Scalar) else ""
        for group in by_value.get(value, ()):
            yield tuple(group.split("|"))


def _is_given(name: str, given: dict[str, Given]) -> bool:
    outer, _, inner = name.partition("[].")
    if outer not in given or is_missing(given[outer].value):
        return False
    if not inner:
        return True
    node = given[outer].value
    items = node.items if isinstance(node, Sequence) else [node]
    return all(isinstance(item, Mapping) and inner in item.entries for item in items)


def _empty_value(node: Node) -> str:
    return "null" if isinstance(node, Scalar) and node.value is None else "empty"


def _advice(declared: ToolSpec | Members, name: str) -> str:
    known = declared.fields.get(name)
    return f"`{name}`: {known.doc}" if known is not None and known.doc else f"add `{name}: ...`"


def check_value(reader: Reader, key: str, value: Node, field: Field, owner: str) -> None:
    """Report a literal with a type or value that the field does not accept."""
    if is_template(value) or (isinstance(value, Scalar) and value.value is None):
        return
    if isinstance(value, Mapping) and value.broken:
        return
    expected = " or ".join(_TYPE_NAMES[type] for type in field.accepts) or _TYPE_NAMES.get(field.type)
    if expected is not None and not has_type(value, field):
        message = f"`{key}` of {owner} must be {expected}, not {describe_node(value)}"
        reader.add("parameter-type", value, message, field.doc)
    elif field.choices and isinstance(value, Scalar) and not is_missing(value):
        if value.text.lower() not in {each.lower() for each in (*field.choices, *field.also)}:
            hint = did_you_mean(value.text, field.choices, "write one of: " + ", ".join(field.choices))
            reader.add("parameter-type", value, f'`{key}` of {owner} cannot be "{shorten(value.text)}"', hint)
    elif isinstance(value, Scalar) and (wanted := out_of_range(value.value, field)) is not None:
        reader.add("parameter-type", value, f"`{key}` of {owner} must be {wanted}, not {value.text}", field.doc)
    elif (field.schemes or field.pattern) and isinstance(value, Scalar):
        if not is_missing(value):
            _check_text(reader, key, value, field, owner)
    else:
        _check_inside(reader, key, value, field, owner)


def _check_text(reader: Reader, key: str, value: Scalar, field: Field, owner: str) -> None:
    if field.schemes and value.text.partition("://")[0].lower() not in field.schemes:
        hint = f"write the whole URL: `{field.schemes[-1]}://host/path`"
        message = f'`{key}` of {owner} must be a URL of {" or ".join(field.schemes)}, not "{shorten(value.text)}"'
        reader.add("parameter-type", value, message, hint)
    elif field.schemes and not re.match(r"[^:]+://[^/?#]", value.text):
        message = f'`{key}` of {owner} has no host: "{shorten(value.text)}"'
        reader.add("parameter-type", value, message, f"write the whole URL: `{field.schemes[-1]}://host/path`")
    elif field.schemes and not _is_address(value.text):
        message = f'`{key}` of {owner} has an invalid host or port: "{shorten(value.text)}"'
        reader.add("parameter-type", value, message, f"write `{field.schemes[-1]}://host:port/path`")
    if field.pattern and not re.fullmatch(field.pattern, " ".join(value.text.lower().split())):
        reader.add("parameter-type", value, f'`{key}` of {owner} cannot be "{shorten(value.text)}"', field.doc)


def _is_address(url: str) -> bool:
    """Whether the host of a URL has no blanks and its port is one."""
    try:
        found = urlsplit(url.strip())
        return found.port != 0 and not any(letter.isspace() for letter in found.netloc)
    except ValueError:
        return False


def _check_inside(reader: Reader, key: str, value: Node, field: Field, owner: str) -> None:
    if field.each is not None:
        for name, item in _items(key, value):
            if isinstance(value, Sequence) and isinstance(item, Scalar) and is_missing(item):
                message = f"an item of `{key}` of {owner} is {_empty_value(item)}"
                reader.add("parameter-type", item, message, field.each.doc)
            check_value(reader, name, item, field.each, f"`{key}` of {owner}" if name != key else owner)
    if field.members is not None and isinstance(value, Mapping):
        _check_members(reader, value, field.members, f"`{key}` of {owner}", value)
    elif field.variants and not is_missing(value):
        several = isinstance(value, Sequence)
        for item in value.items if isinstance(value, Sequence) else [value]:
            what = f"{with_article(_singular(key))} of {owner}" if several else f"`{key}` of {owner}"
            if isinstance(item, Mapping):
                _check_variant(reader, item, field, what)
            elif not is_template(item) and key != "source":
                message = f"{what} must be a mapping with `kind`, not {describe_node(item)}"
                reader.add("parameter-type", item, message, field.doc)


def _items(key: str, value: Node) -> list[tuple[str, Node]]:
    """The values of a mapping by their keys, the items of a list by the name of the list."""
    if isinstance(value, Mapping):
        return [(name, item) for name, (_, item) in value.entries.items()]
    return [(key, item) for item in value.items] if isinstance(value, Sequence) else []


def _singular(key: str) -> str:
    return key.removesuffix("s")


def _check_variant(reader: Reader, node: Mapping, field: Field, what: str) -> None:
    if node.broken or {"type", "locator"} <= node.entries.keys():
        return  # a reference
    known = sorted(field.variants)
    entry = node.entries.get("kind") or node.entries.get("type")
    if entry is None or is_missing(entry[1]):
        kind = next((each for key, each in field.implied_kinds.items() if key in node.entries), "")
        place: Node = node if entry is None else entry[1]
    else:
        if is_template(entry[1]) or not isinstance(entry[1], Scalar):
            return
        kind, place = entry[1].text.lower(), entry[1]
    members = field.variants.get(kind)
    if members is None and kind in PLUGIN_SIDES:
        message = f'{what}: the kind "{kind}" needs a plug-in that is not installed; the task will fail at run time'
        reader.add("plugin-kind", place, message, install_hint(kind) or "known kinds: " + ", ".join(known))
    elif members is None and (kind and entry is not None):
        hint = did_you_mean(kind, known, "known kinds: " + ", ".join(known))
        reader.add("parameter-type", place, f'{what} cannot be of kind "{shorten(kind)}"', hint)
    elif members is None:
        reader.add("missing-parameter", place, f'{what} requires "kind"', "known kinds: " + ", ".join(known))
    else:
        _check_members(reader, node, members, f"{what} ({kind})", entry[1] if entry is not None else node)


def _check_members(reader: Reader, node: Mapping, members: Members, owner: str, where: Node) -> None:
    names = field_names(members)
    given: dict[str, Given] = {}
    for key, (key_node, value) in node.entries.items():
        name = names.get(key)
        if name is None and members.open:
            continue
        if name is None and key in members.elsewhere:
            reader.add("misplaced-key", key_node, f"{owner} has no `{key}`", members.elsewhere[key])
            continue
        if name is None:
            hint = did_you_mean(key, names, "valid here: " + ", ".join(sorted(members.fields)))
            reader.add("unknown-parameter", key_node, f'{owner} has no "{key}"', hint)
            continue
        given.setdefault(name, Given(key_node, value))
        check_value(reader, key, value, members.fields[name], owner)
    check_required(reader, members, given, owner, where)
    check_alternatives(reader, members, given, owner)


_TYPE_NAMES = {
    "string": "text",
    "code": "code",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "mapping": "a mapping",
    "list": "a list",
}


def has_type(value: Node, field: Field) -> bool:
    """Whether a literal has the type of the field, or one of its types."""
    if field.accepts:
        return any(_is_one_of_several(value, type) for type in field.accepts)
    return _has_type(value, field.type)


def _is_one_of_several(value: Node, type: FieldType) -> bool:
    text = value.value if isinstance(value, Scalar) and isinstance(value.value, str) else None
    if type == "string":
        return text is not None
    quoted = text is not None and type in ("integer", "number") and _NUMBER.fullmatch(text) is not None
    return quoted or _has_type(value, type)


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def _has_type(value: Node, type: FieldType) -> bool:
    if type == "mapping":
        return isinstance(value, Mapping)
    if type == "list":
        return isinstance(value, Sequence)
    if not isinstance(value, Scalar):
        return False
    if type == "boolean":
        return isinstance(value.value, bool)
    if type == "integer":
        return isinstance(value.value, int) and not isinstance(value.value, bool)
    if type == "number":
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if type == "code":
        return isinstance(value.value, str)
    return not isinstance(value.value, bool)  # a number can be read as text
