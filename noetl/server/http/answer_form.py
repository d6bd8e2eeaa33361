"""The form of a wait as an HTML page without scripts, and the data of a submitted form.

A form whose JSON Schema is an object has one field per property; any other schema is answered with JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import parse_qs

from noetl.core.model.waits import InboxEntry

JSON_FIELD = "noetl.json"  # the field of a form that is not a flat object
MAX_TEXT = 100_000

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 34rem; margin: 3rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } label, legend { display: block; font-weight: 600; margin: 1rem 0 .25rem; }
fieldset { border: 0; padding: 0; margin: 0; } fieldset label { display: inline; font-weight: 400; margin-right: 1rem; }
input[type=text], input[type=number], input[type=date], input[type=datetime-local], select, textarea {
  width: 100%; box-sizing: border-box; font: inherit; padding: .4rem; }
button { font: inherit; padding: .5rem 1.25rem; margin-top: 1.5rem; }
.meta { opacity: .75; font-size: .9rem; } .error { border-left: 4px solid #c00; padding-left: .75rem; }
"""


def form_page(entry: InboxEntry, nonce: str, problem: str = "", given: Mapping[str, str] | None = None) -> str:
    """The page that asks for the answer; `given` are the values of a submission that was refused."""
    title = entry.title or f"{entry.path}: {entry.signal}"
    fields = "".join(_field(*each, given or {}) for each in _properties(entry.form))
    if entry.form is not None and not fields:
        fields = _json_field(entry.form, given or {})
    refused = f'<p class="error" role="alert">{escape(problem)}</p>' if problem else ""
    meta = f"{escape(entry.path)}, step {escape(entry.step)}, execution {escape(entry.execution_id)}"
    body = (
        f'<h1>{escape(title)}</h1><p class="meta">{meta}</p>{refused}'
        f'<form method="post">{fields}<button type="submit">{"Send" if fields else "Continue"}</button></form>'
    )
    return _page(title, body, nonce)


def message_page(title: str, text: str, nonce: str) -> str:
    """A page with one message."""
    return _page(title, f"<h1>{escape(title)}</h1><p>{escape(text)}</p>", nonce)


def submitted(body: bytes, form: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The data of a submitted form, and its fields as text; ValueError names the field that cannot be read."""
    texts = {name: values[-1] for name, values in parse_qs(body.decode(errors="replace"), max_num_fields=1_000).items()}
    if JSON_FIELD in texts:
        try:
            data = json.loads(texts[JSON_FIELD])
        except ValueError as problem:
            raise ValueError(f"the answer is not JSON: {problem}") from None
        if not isinstance(data, dict):
            raise ValueError("the answer must be a JSON object")
        return data, texts
    data = {}
    for name, schema, _ in _properties(form):
        text = texts.get(name, "")
        if text.strip():
            data[name] = _value(name, schema, text)
    return data, texts


# ── fields ──────────────────────────────────────────────────────────────────────────────


def _properties(form: Any) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Name, schema and whether it is required, of every property; empty if the form is not a flat object."""
    properties = form.get("properties") if isinstance(form, Mapping) else None
    if not isinstance(properties, Mapping) or not all(_is_simple(each) for each in properties.values()):
        return []
    required = form.get("required", ())
    return [(str(name), schema, name in required) for name, schema in properties.items()]


def _is_simple(schema: Any) -> bool:
    return isinstance(schema, Mapping) and (
        "enum" in schema or schema.get("type") in ("boolean", "string", "number", "integer")
    )


def _field(name: str, schema: Mapping[str, Any], required: bool, given: Mapping[str, str]) -> str:
    label = escape(str(schema.get("title") or name))
    must = " required" if required else ""
    value = given.get(name, "" if schema.get("default") is None else _text(schema["default"]))
    help_ = f'<p class="meta">{escape(str(schema["description"]))}</p>' if schema.get("description") else ""
    key = escape(name, quote=True)
    if "enum" in schema:
        return f'<label for="{key}">{label}</label>{help_}{_select(key, schema["enum"], must, value)}'
    if schema.get("type") == "boolean":
        choices = "".join(
            f'<label><input type="radio" name="{key}" value="{each}"{must}'
            f"{' checked' if value == each else ''}> {shown}</label>"
            for each, shown in (("true", "yes"), ("false", "no"))
        )
        return f"<fieldset><legend>{label}</legend>{help_}{choices}</fieldset>"
    if schema.get("type") in ("number", "integer"):
        step = "1" if schema["type"] == "integer" else "any"
        control = f'<input type="number" step="{step}" id="{key}" name="{key}" value="{escape(value)}"{must}>'
    elif schema.get("format") in ("date", "date-time"):
        kind = "date" if schema["format"] == "date" else "datetime-local"
        control = f'<input type="{kind}" id="{key}" name="{key}" value="{escape(value)}"{must}>'
    elif (schema.get("maxLength") or 0) > 200 or schema.get("format") == "textarea":
        control = f'<textarea rows="5" id="{key}" name="{key}"{must}>{escape(value)}</textarea>'
    else:
        control = f'<input type="text" id="{key}" name="{key}" value="{escape(value)}"{must}>'
    return f'<label for="{key}">{label}</label>{help_}{control}'


def _select(key: str, values: Sequence[Any], must: str, chosen: str) -> str:
    options = "".join(
        f'<option value="{escape(_text(each), quote=True)}"{" selected" if _text(each) == chosen else ""}>'
        f"{escape(_text(each))}</option>"
        for each in values
    )
    return f'<select id="{key}" name="{key}"{must}><option value=""></option>{options}</select>'


def _json_field(form: Any, given: Mapping[str, str]) -> str:
    value = escape(given.get(JSON_FIELD, "{}"))
    schema = escape(json.dumps(form, indent=2))
    return (
        f'<label for="json">Answer (JSON)</label><textarea id="json" name="{JSON_FIELD}" rows="8">{value}</textarea>'
        f"<details><summary>Schema</summary><pre>{schema}</pre></details>"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value(name: str, schema: Mapping[str, Any], text: str) -> Any:
    """The value of a field, with the type of its schema."""
    if "enum" in schema:
        return next((each for each in schema["enum"] if _text(each) == text), text)
    kind = schema.get("type")
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    if kind in ("number", "integer"):
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"{name}: {text!r} is not a number") from None
        return int(number) if number.is_integer() else number
    return text[:MAX_TEXT]


def _page(title: str, body: str, nonce: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><style nonce="{nonce}">{_STYLE}</style></head><body>{body}</body></html>'
    )
