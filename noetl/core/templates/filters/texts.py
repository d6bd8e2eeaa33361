"""Filters over single values: defaults, types, numbers, text, encodings, dates."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import quote, unquote, urlencode

from jinja2.filters import do_filesizeformat
from markupsafe import escape

from noetl.core.model.excerpt import excerpt, unencodable
from noetl.core.templates.budget import MAX_BITS, MAX_WIDTH, SMALL, EvaluationBudget, limit_exceeded
from noetl.core.templates.filters import dates
from noetl.core.templates.filters import regular_expressions as regex
from noetl.core.templates.filters.registry import FILTERS, Filter, charged, elements_of, template_filter, text_of
from noetl.core.templates.functions import (
    format_text,
    join_texts,
    padding,
    recase,
    replace_text,
    split_lines,
    split_text,
    strip_text,
)
from noetl.core.templates.lookup import Undefined, kind_of
from noetl.core.templates.operators import format_percent, measure, to_text
from noetl.core.templates.views import plain
from noetl.errors import TemplateError

# ── undefined, none, conditions ─────────────────────────────────────────────────────────


@template_filter("the value, or another one if it is not defined; `default(x, true)` also if it is false", raw=True)
def _default(budget: EvaluationBudget, value: Any, default_value: Any = "", boolean: Any = False) -> Any:
    if isinstance(value, Undefined) or (boolean and not value):
        return default_value
    return value


FILTERS["d"] = FILTERS["default"]._replace(doc="`default`, for short")


@template_filter("`cond | ternary(a, b)`: a if it is true, else b; a third one for none")
def _ternary(budget: EvaluationBudget, value: Any, yes: Any, no: Any = None, none: Any = None) -> Any:
    return none if value is None and none is not None else (yes if value else no)


# ── types ───────────────────────────────────────────────────────────────────────────────


@template_filter("a whole number; `int(default, base)`, the default (0) when it cannot be read as one", "int")
def _int(budget: EvaluationBudget, value: Any, default: Any = 0, base: int = 10) -> Any:
    if isinstance(value, str):
        budget.charge(1 + (len(value) >> 5))
        if len(value) > MAX_BITS:
            limit_exceeded(f"a number of {len(value):,} digits")
    try:
        number = int(value, base) if isinstance(value, str) else int(value)
        if not -SMALL < number < SMALL:
            budget.charge_number(number)
        return number
    except (TypeError, ValueError, OverflowError):
        try:
            return int(float(value))
        except (TypeError, ValueError, OverflowError):
            return default


@template_filter("a number; `float(default)`, the default (0.0) when it cannot be read as one", "float")
def _float(budget: EvaluationBudget, value: Any, default: Any = 0.0) -> Any:
    if isinstance(value, str):
        budget.charge(1 + (len(value) >> 5))
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if math.isfinite(number) else default  # JSON has neither NaN nor infinities


_FALSE = frozenset(["", "false", "0", "no", "off", "n", "f", "none", "null"])


@template_filter('true or false; of text, "false", "no", "off", "0", "none" and "" are false', "bool")
def _bool(budget: EvaluationBudget, value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    return len(value) > MAX_WIDTH or value.strip().lower() not in _FALSE


@template_filter("text", "string")
def _string(budget: EvaluationBudget, value: Any) -> str:
    text = to_text(budget, value)
    budget.charge_text(len(text))
    return text


@template_filter("a list; of text its characters, of a mapping its keys", "list")
def _list(budget: EvaluationBudget, value: Any) -> list[Any]:
    return elements_of(budget, value)


@template_filter("the name of the type of a value, for debugging")
def _type_debug(budget: EvaluationBudget, value: Any) -> str:
    return kind_of(value)


# ── numbers ─────────────────────────────────────────────────────────────────────────────


@template_filter("without its sign", "abs")
def _abs(budget: EvaluationBudget, value: Any) -> Any:
    return abs(_number(value))


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value
    raise TemplateError(f"expected a number, not {kind_of(value)}")


@template_filter("rounded to a precision (0); method `common`, `ceil` or `floor`", "round")
def _round(budget: EvaluationBudget, value: Any, precision: int = 0, method: str = "common") -> Any:
    if isinstance(_number(value), int):
        budget.charge_number(value)
    if not -308 <= _number(precision) <= 308:
        limit_exceeded("a precision of more than 308 digits")
    budget.charge(abs(precision) >> 2)
    if method == "common":
        return round(value, precision)
    if method not in ("ceil", "floor"):
        raise TemplateError('round: the method is "common", "ceil" or "floor"')
    shift = 10.0**precision
    return getattr(math, method)(value * shift) / shift


@template_filter("a number of bytes in readable form: `13 kB`; `filesizeformat(true)` uses units of 1024")
def _filesizeformat(budget: EvaluationBudget, value: Any, binary: bool = False) -> str:
    return do_filesizeformat(value, binary)


# ── text ────────────────────────────────────────────────────────────────────────────────


def _of_text(name: str, doc: str, method: Callable[[str], str]) -> None:
    def change(budget: EvaluationBudget, value: Any) -> str:
        return recase(budget, to_text(budget, value), method)

    FILTERS[name] = Filter(change, doc)


def _escaped(budget: EvaluationBudget, value: Any) -> str:
    text = text_of(budget, value)
    budget.charge_text(len(text) + 4 * sum(map(text.count, "&<>\"'")))
    return str(escape(text))


_of_text("lower", "in lower case", str.lower)
_of_text("upper", "in upper case", str.upper)
_of_text("capitalize", "first letter in upper case, the others in lower case", str.capitalize)
_of_text("title", "Every Word With A Capital", str.title)
FILTERS["escape"] = Filter(_escaped, "`&<>\"'` as HTML entities")
FILTERS["e"] = Filter(_escaped, "`escape`, for short")
FILTERS["forceescape"] = Filter(_escaped, "`escape`")
_of_text("safe", "text unchanged (nothing is escaped automatically)", lambda text: text)
_of_text("basename", "the last part of a path", lambda text: text.rstrip("/").rpartition("/")[2])
_of_text("dirname", "a path without its last part", lambda text: text.rstrip("/").rpartition("/")[0])


@template_filter("without white space around it; `trim(chars)` without those characters")
def _trim(budget: EvaluationBudget, value: Any, chars: str | None = None) -> str:
    return strip_text(budget, to_text(budget, value), chars)


@template_filter("`replace(old, new, count)`")
def _replace(budget: EvaluationBudget, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replace_text(
        budget, text_of(budget, value), to_text(budget, old), to_text(budget, new), -1 if count is None else count
    )


@template_filter("shortened to `truncate(length=255, killwords=false, end='...', leeway=5)`")
def _truncate(
    budget: EvaluationBudget, value: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 5
) -> str:
    if length < len(end):
        raise TemplateError(f"truncate: the length must be at least {len(end)}, the length of the end")
    text = text_of(budget, value)
    if len(text) <= length + leeway:
        return text
    kept = text[: length - len(end)]
    return charged(budget, (kept if killwords else kept.rsplit(" ", 1)[0]) + end)


@template_filter("padded on both sides to a width (80)")
def _center(budget: EvaluationBudget, value: Any, width: int = 80) -> str:
    text = text_of(budget, value)
    return text.center(padding(budget, text, width))


@template_filter("padded on the right to a width, `ljust(10, '.')`")
def _ljust(budget: EvaluationBudget, value: Any, width: int, fill: str = " ") -> str:
    text = text_of(budget, value)
    return text.ljust(padding(budget, text, width), fill)


@template_filter("padded on the left to a width, `rjust(10, '0')`")
def _rjust(budget: EvaluationBudget, value: Any, width: int, fill: str = " ") -> str:
    text = text_of(budget, value)
    return text.rjust(padding(budget, text, width), fill)


@template_filter("every line but the first indented by a width (4) or a text; `indent(2, first=true, blank=true)`")
def _indent(budget: EvaluationBudget, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    text = text_of(budget, value)
    space = width if isinstance(width, str) else " " * padding(budget, "", width)
    lines = split_lines(budget, text, True)
    budget.charge_text(len(text) + len(lines) * len(space))
    moved = [
        line if number == 0 and not first else (space + line if blank or line.strip() else line)
        for number, line in enumerate(lines)
    ]
    return "".join(moved)


_RUNS = re.compile(r"\s+|\S+")


@template_filter("lines of at most a width (79): `wordwrap(width, break_long_words, wrapstring)`")
def _wordwrap(
    budget: EvaluationBudget, value: Any, width: int = 79, break_long_words: bool = True, wrapstring: str = "\n"
) -> str:
    text = text_of(budget, value)
    if width < 1:
        raise TemplateError("wordwrap: the width must be at least 1")
    wrapstring = to_text(budget, wrapstring)
    source = split_lines(budget, text)
    # A line costs some microseconds, a character a part of one; a long word is copied for each piece that is cut off.
    budget.charge(len(text) + 40 * len(source))
    budget.charge(sum((run.end() - run.start()) ** 2 // width >> 10 for run in _RUNS.finditer(text)))
    budget.charge_text(len(text) * (1 + len(wrapstring)))
    lines = [
        wrapstring.join(
            textwrap.wrap(line, width, expand_tabs=False, replace_whitespace=False, break_long_words=break_long_words)
        )
        for line in source
    ]
    return wrapstring.join(lines)


@template_filter("how many words")
def _wordcount(budget: EvaluationBudget, value: Any) -> int:
    return len(split_text(budget, text_of(budget, value)))


@template_filter("text without markup, white space collapsed")
def _striptags(budget: EvaluationBudget, value: Any) -> str:
    text = text_of(budget, value)
    budget.charge(1 + (len(text) >> 3))
    kept: list[str] = []
    for piece in text.split("<"):
        if not kept:
            kept.append(piece)
            continue
        kept.append(piece.rpartition(">")[2] if ">" not in piece else piece.partition(">")[2])
    return charged(budget, " ".join("".join(kept).split()))


@template_filter("split at a separator (white space), at most that many times: `split(',', 2)`")
def _split(budget: EvaluationBudget, value: Any, separator: str | None = None, maxsplit: int = -1) -> list[str]:
    return split_text(budget, text_of(budget, value), separator, maxsplit)


@template_filter("the lines of a text")
def _splitlines(budget: EvaluationBudget, value: Any) -> list[str]:
    return split_lines(budget, text_of(budget, value))


@template_filter("`'%s of %d' | format(a, b)`: Python's % formatting; with `{}` in it, `str.format`", "format")
def _format(budget: EvaluationBudget, value: Any, *args: Any, **kwargs: Any) -> str:
    text = text_of(budget, value)
    if args and kwargs:
        raise TemplateError("format: values by position or by name, not both")
    if "%" not in text and "{" in text:
        return format_text(budget, text, *args, **kwargs)
    return format_percent(budget, text, kwargs or args)


@template_filter("the first match of a regular expression, or none; a list of its groups if it has several")
def _regex_search(budget: EvaluationBudget, value: Any, pattern: str, ignorecase: bool = False) -> Any:
    found = regex.search(budget, pattern, text_of(budget, value), ignorecase=ignorecase)
    if found is None:
        return None
    groups = found.groups()
    return found.group(0) if not groups else (groups[0] if len(groups) == 1 else list(groups))


@template_filter("whether a regular expression matches at the beginning")
def _regex_match(budget: EvaluationBudget, value: Any, pattern: str, ignorecase: bool = False) -> bool:
    return regex.match(budget, pattern, text_of(budget, value), ignorecase=ignorecase) is not None


@template_filter("all matches of a regular expression")
def _regex_findall(budget: EvaluationBudget, value: Any, pattern: str, ignorecase: bool = False) -> list[Any]:
    return regex.findall(budget, pattern, text_of(budget, value), ignorecase=ignorecase)


@template_filter("every match replaced; `\\1` in the replacement is the first group")
def _regex_replace(
    budget: EvaluationBudget, value: Any, pattern: str, replacement: str = "", ignorecase: bool = False
) -> str:
    return regex.replace(budget, pattern, replacement, text_of(budget, value), ignorecase=ignorecase)


# ── encodings ───────────────────────────────────────────────────────────────────────────


@template_filter("JSON text; `tojson(indent=2)`, `tojson(sort_keys=true)`", "tojson", "to_json")
def _tojson(budget: EvaluationBudget, value: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    if indent is not None and not 0 <= indent <= 100:
        limit_exceeded("an indent of more than 100")
    data = plain(value, budget)
    length = measure(budget, data)
    if indent is not None:
        length += _lines(data) * (indent + 1)
    budget.charge_text(length)
    try:
        text = json.dumps(data, ensure_ascii=False, indent=indent, sort_keys=sort_keys)
    except RecursionError:
        limit_exceeded("data that is nested too deeply")
    budget.charge_text(max(len(text) - length, 0))
    return text


def _lines(data: Any) -> int:
    """Return a lower bound of the number of lines of indented JSON."""
    if not isinstance(data, (list, dict)):
        return 0
    below = data.values() if isinstance(data, dict) else data
    return 1 + len(data) + sum(_lines(each) for each in below if isinstance(each, (list, dict)))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


@template_filter("data parsed from JSON text", "fromjson", "from_json")
def _fromjson(budget: EvaluationBudget, value: Any) -> Any:
    if not isinstance(value, str):
        if isinstance(value, (dict, list)):
            return value
        raise TemplateError(f"fromjson: expected text, not {kind_of(value)}")
    budget.charge(1 + (len(value) >> 3))
    try:
        data = json.loads(value, parse_constant=_no_constant)
        if "\\u" in value and (wrong := unencodable(data)):
            raise TemplateError(f"fromjson: {wrong}")
        return data
    except ValueError as problem:
        raise TemplateError(f"fromjson: the text is not JSON: {problem}") from None
    except RecursionError:
        limit_exceeded("JSON that is nested too deeply")


@template_filter("base64 of text (UTF-8)", "b64encode")
def _b64encode(budget: EvaluationBudget, value: Any) -> str:
    data = value if isinstance(value, bytes) else text_of(budget, value).encode()
    budget.charge_text(len(data) * 4 // 3 + 4)
    return base64.b64encode(data).decode()


@template_filter("text (UTF-8) decoded from base64", "b64decode")
def _b64decode(budget: EvaluationBudget, value: Any) -> str:
    text = text_of(budget, value)
    budget.charge_text(len(text))
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        raise TemplateError("b64decode: this is not base64 of UTF-8 text") from None


def _digest(name: str) -> None:
    def digest(budget: EvaluationBudget, value: Any) -> str:
        data = value if isinstance(value, bytes) else text_of(budget, value).encode()
        return hashlib.new(name, data, usedforsecurity=False).hexdigest()

    FILTERS[name] = Filter(digest, f"the {name.upper()} digest of text, in hexadecimal")


for _name in ("sha256", "sha512", "sha1", "md5"):
    _digest(_name)


@template_filter("the digest of text by a named algorithm: `hash('sha256')`", "hash")
def _hash(budget: EvaluationBudget, value: Any, algorithm: str = "sha256") -> str:
    if algorithm not in ("sha256", "sha512", "sha1", "md5"):
        raise TemplateError(f"hash: {excerpt(algorithm)} is not known; sha256, sha512, sha1 and md5 are")
    digest: str = FILTERS[algorithm].function(budget, value)
    return digest


@template_filter("text safe inside a URL's path; of a mapping or a list of pairs, a query string", "urlencode")
def _urlencode(budget: EvaluationBudget, value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [(to_text(budget, key), to_text(budget, each)) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(to_text(budget, key), to_text(budget, each)) for key, each in value]
    else:
        text = text_of(budget, value)
        budget.charge(len(text) >> 2)
        budget.charge_text(len(text) * 3)
        return quote(text, safe="/")
    length = sum(len(key) + len(text) for key, text in pairs)
    budget.charge(1 + 8 * len(pairs) + (length >> 2))
    budget.charge_text(length * 3)
    return urlencode(pairs, quote_via=quote)


@template_filter("text decoded from a URL")
def _urldecode(budget: EvaluationBudget, value: Any) -> str:
    text = text_of(budget, value)
    budget.charge(text.count("%"))
    return charged(budget, unquote(text))


@template_filter("text as one word of a shell command", "quote")
def _quote(budget: EvaluationBudget, value: Any) -> str:
    text = text_of(budget, value)
    budget.charge_text(len(text) * 5)
    return "'" + text.replace("'", "'\"'\"'") + "'"


@template_filter("a mapping as attributes of an HTML tag")
def _xmlattr(budget: EvaluationBudget, value: Any, autospace: bool = True) -> str:
    if not isinstance(value, Mapping):
        raise TemplateError(f"xmlattr: expected a mapping, not {kind_of(value)}")
    parts = []
    for key, each_value in value.items():
        if each_value is None:
            continue
        name = to_text(budget, key)
        budget.charge(6)
        if any(sign in name for sign in " />=\t\n\f\r\"'"):
            raise TemplateError(f"xmlattr: {excerpt(name)} is not a name of an attribute")
        parts.append(f'{_escaped(budget, name)}="{_escaped(budget, each_value)}"')
    text = join_texts(budget, " ", parts)
    return " " + text if autospace and text else text


@template_filter("a value in readable form, on several lines if it is long")
def _pprint(budget: EvaluationBudget, value: Any) -> str:
    text = to_text(budget, value)
    return text if len(text) <= 80 else str(_tojson(budget, value, indent=2))


# ── dates ───────────────────────────────────────────────────────────────────────────────

FILTERS["strftime"] = Filter(dates.strftime, "a date in a format: `now() | strftime('%d.%m.%Y')`")
FILTERS["date"] = Filter(
    lambda budget, value, layout="%Y-%m-%d": dates.strftime(budget, value, layout),
    "a date as `2026-03-01`, or in a format",
)
FILTERS["to_datetime"] = Filter(dates.to_datetime, "a date as ISO 8601 text; `to_datetime('%d.%m.%Y')` reads a format")
FILTERS["timestamp"] = Filter(dates.timestamp, "a date as seconds since 1970")
FILTERS["date_add"] = Filter(
    dates.date_add, "a date plus a duration: `date_add('1d 2h')`, `date_add(days=1)`, `date_add(-3600)`"
)
FILTERS["date_diff"] = Filter(dates.date_diff, "seconds from another date to this one: `end | date_diff(start)`")
