"""Parses the inputs of a run: `--payload` and `--set` into one mapping, PATH[@VERSION] into path and version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from noetl.cli.playbook_files import read_bounded
from noetl.core.model.merge import put_path

MAX_PAYLOAD = 64 * 1024 * 1024


def read_payload(payload: str | None, sets: Sequence[str]) -> dict[str, Any]:
    """The payload: the document of `--payload`, overridden by each `--set`."""
    document = _document(payload) if payload is not None else {}
    for text in sets:
        path, value = _assignment(text, "--set")
        if len(path) > 1 and path[0] == "workload":  # paths are below workload: `workload.a` is the same as `a`
            path = path[1:]
        document = put_path(document, path, value)
    return document


def read_assignments(texts: Sequence[str], hint: str) -> dict[str, Any]:
    """Assignments of the form a.b=VALUE, by dotted path."""
    return {".".join(path): value for path, value in (_assignment(text, hint) for text in texts)}


def read_labels(labels: Sequence[str]) -> dict[str, str]:
    """Labels of the form NAME=VALUE."""
    pairs = [each.partition("=") for each in labels]
    for text, (name, equals, _) in zip(labels, pairs, strict=True):
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--label")
    return {name: value for name, _, value in pairs}


def unknown_keys(payload: Mapping[str, Any], workload: Mapping[str, Any], text: str) -> list[str]:
    """Warnings about keys of a payload that a playbook neither declares in `workload` nor mentions."""
    import re

    from noetl.settings import similar

    words: set[str] | None = None
    found = []
    waiting: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [("", payload, workload)]
    while waiting:
        prefix, given, declared = waiting.pop()
        for key, value in given.items():
            inner = declared.get(key)
            if isinstance(value, Mapping) and isinstance(inner, Mapping) and inner:
                waiting.append((f"{prefix}{key}.", value, inner))
            if key in declared:
                continue
            words = set(re.findall(r"\w+", text)) if words is None else words
            if key not in words:
                found.append(f"the playbook does not use workload.{prefix}{key}{similar(key, list(declared))}")
    return found


def split_version(target: str) -> tuple[str, str | None]:
    """Path and version of PATH[@VERSION]."""
    path, at, version = target.rpartition("@")
    return (path, version) if at and path and (version.isdecimal() or version == "latest") else (target, None)


def _document(payload: str) -> dict[str, Any]:
    """JSON given inline, or a file of JSON or YAML after an `@` (`@-` is stdin); JSON is YAML as well."""
    if payload.startswith("@"):
        name = payload[1:]
        text = read_bounded(name, MAX_PAYLOAD)
        if len(text) > MAX_PAYLOAD:
            raise click.BadParameter(f"{name} has more than {MAX_PAYLOAD >> 20} MB", param_hint="--payload")
        data = _json(text, name) if name.endswith(".json") else _yaml(text, name)
        where = name
    else:
        data, where = _json(payload.encode("utf-8", "surrogateescape"), "this"), "this"
    if not isinstance(data, dict):
        raise click.BadParameter(f"{where} must be a mapping, not {_kind(data)}", param_hint="--payload")
    return data


def _json(text: bytes, name: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise click.BadParameter(f"{name} is not JSON: {problem}", param_hint="--payload") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{name} is not UTF-8 text", param_hint="--payload") from None


def _yaml(text: bytes, name: str) -> Any:
    from noetl.core.language.source.yaml_source import data_of, read_source

    source = read_source(text)
    if source.problems:
        first = source.problems[0]
        raise click.BadParameter(
            f"{name}:{first.node.line}:{first.node.column}: {first.message}", param_hint="--payload"
        )
    return data_of(source.root)


def _assignment(text: str, hint: str) -> tuple[tuple[str, ...], Any]:
    """`a.b=VALUE`: the path, and the value parsed as YAML."""
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise click.BadParameter(f"{text!r} is not of the form a.b=VALUE", param_hint=hint)
    return path, _value(value)


def _value(text: str) -> Any:
    """A YAML scalar, or a list or mapping in brackets; anything else is text."""
    from noetl.core.language.source.yaml_source import data_of, read_source, resolve_plain

    stripped = text.strip()
    if stripped[:1] in ("[", "{", "'", '"'):
        source = read_source(stripped)
        return text if source.problems else data_of(source.root)
    value, problem = resolve_plain(stripped)
    return text if problem or isinstance(value, str) else value


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)
