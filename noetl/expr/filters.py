"""The filters of the template language: pure, bounded, each with the line that documents it.

A filter is `function(run, value, *arguments)`. Values arrive as data (views unwrapped, an
undefined already refused), except for those marked `raw`. Filters that make lists make them at
once, so `map` and `select` give lists and not Python's generators. `sorted` and friends put what
cannot be compared into the author's words.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from html import escape as html_escape
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from jinja2.filters import do_filesizeformat

from noetl.errors import TemplateError
from noetl.expr import dates, regex
from noetl.expr.functions import call_problem, format_text, join_texts, padding, replace_text, split_lines, split_text
from noetl.expr.limits import Run, too_much
from noetl.expr.lookup import Group, Missing, Undefined, View, kind_of, lookup, unwrap
from noetl.expr.operations import add, format_percent, measure, to_text
from noetl.expr.views import plain
from noetl.model.merge import deep_merge


class Filter(NamedTuple):
    """A filter and its documentation.

    `raw`: it takes undefined and views as they are. `plain`: given plain data it answers plain data.
    """

    function: Callable[..., Any]
    doc: str
    raw: bool = False
    plain: bool = True


FILTERS: dict[str, Filter] = {}


def _filter(
    doc: str, *names: str, raw: bool = False, plain: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names or (function.__name__.strip("_"),):
            FILTERS[name] = Filter(function, doc, raw, plain)
        return function

    return register


def apply(run: Run, name: str, value: Any, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
    """Apply a filter by its name."""
    found = FILTERS.get(name)
    if found is None:
        raise TemplateError(f'there is no filter "{name}"')
    return apply_filter(run, name, found, value, args, kwargs)


def apply_filter(
    run: Run,
    name: str,
    found: Filter,
    value: Any,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Apply a filter that is at hand."""
    run.operations -= 1
    if run.operations < 0:
        run.spend(0)
    if not found.raw:
        if isinstance(value, (View, Undefined)):
            value = unwrap(value)
        if args:
            args = [unwrap(arg) for arg in args]
        if kwargs:
            kwargs = {key: unwrap(arg) for key, arg in kwargs.items()}
    try:
        made = found.function(run, value, *args, **kwargs) if kwargs else found.function(run, value, *args)
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError, ArithmeticError) as problem:
        raise TemplateError(f'the filter "{name}" does not work here: {call_problem(problem)}') from None
    if made is not value and (type(made) is list or type(made) is dict):
        run.weigh(made)
    return made


def _elements(run: Run, value: Any) -> list[Any]:
    """What a filter over a list goes through; a mapping gives its keys, text its characters."""
    if isinstance(value, (list, tuple, range, Mapping, str)):
        run.spend(1 + (len(value) >> 2))
        return list(value)
    raise TemplateError(f"a list is needed, not {kind_of(value)}")


def _text(run: Run, value: Any) -> str:
    text = to_text(run, value)
    run.spend(1 + (len(text) >> 6))
    return text


def _made(run: Run, text: str) -> str:
    run.spend_text(len(text))
    return text


# ── undefined, none, conditions ─────────────────────────────────────────────────────────


@_filter("the value, or another one when it is not defined; `default(x, true)` also when it is false", raw=True)
def _default(run: Run, value: Any, default_value: Any = "", boolean: Any = False) -> Any:
    if isinstance(value, Undefined) or (boolean and not value):
        return default_value
    return value


FILTERS["d"] = FILTERS["default"]._replace(doc="`default`, for short")


@_filter("`cond | ternary(a, b)`: a when it holds, else b; a third one for none")
def _ternary(run: Run, value: Any, yes: Any, no: Any = None, none: Any = None) -> Any:
    return none if value is None and none is not None else (yes if value else no)


# ── types ───────────────────────────────────────────────────────────────────────────────


@_filter("a whole number; `int(default, base)`, the default (0) when it cannot be read as one", "int")
def _int(run: Run, value: Any, default: Any = 0, base: int = 10) -> Any:
    try:
        if isinstance(value, str):
            return int(value, base)
        return int(value)
    except (TypeError, ValueError, OverflowError):
        try:
            return int(float(value))
        except (TypeError, ValueError, OverflowError):
            return default


@_filter("a number; `float(default)`, the default (0.0) when it cannot be read as one", "float")
def _float(run: Run, value: Any, default: Any = 0.0) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return default


_FALSE = frozenset(["", "false", "0", "no", "off", "n", "f", "none", "null"])


@_filter('true or false; of text, "false", "no", "off", "0", "none" and "" are false', "bool")
def _bool(run: Run, value: Any) -> bool:
    return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)


@_filter("text", "string")
def _string(run: Run, value: Any) -> str:
    text = to_text(run, value)
    run.spend_text(len(text))
    return text


@_filter("a list; of text its characters, of a mapping its keys", "list")
def _list(run: Run, value: Any) -> list[Any]:
    return _elements(run, value)


@_filter("the author's word for the type of a value, for finding mistakes")
def _type_debug(run: Run, value: Any) -> str:
    return kind_of(value)


# ── numbers ─────────────────────────────────────────────────────────────────────────────


@_filter("without its sign", "abs")
def _abs(run: Run, value: Any) -> Any:
    return abs(value)


@_filter("rounded to a precision (0); method `common`, `ceil` or `floor`", "round")
def _round(run: Run, value: Any, precision: int = 0, method: str = "common") -> Any:
    if not -308 <= precision <= 308:
        too_much("a precision beyond 308 digits")
    if method == "common":
        return (
            round(float(value), precision) if precision <= 0 and isinstance(value, float) else round(value, precision)
        )
    if method not in ("ceil", "floor"):
        raise TemplateError('round: the method is "common", "ceil" or "floor"')
    shift = 10.0**precision
    return getattr(math, method)(value * shift) / shift


@_filter("a number of bytes for people: `13 kB`; `filesizeformat(true)` counts in 1024")
def _filesizeformat(run: Run, value: Any, binary: bool = False) -> str:
    return do_filesizeformat(value, binary)


# ── text ────────────────────────────────────────────────────────────────────────────────


def _of_text(name: str, doc: str, method: Callable[[str], str]) -> None:
    def change(run: Run, value: Any) -> str:
        text = _text(run, value)
        run.spend_text(len(text))
        return method(text)

    FILTERS[name] = Filter(change, doc)


def _escaped(text: str) -> str:
    return html_escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


_of_text("lower", "in lower case", str.lower)
_of_text("upper", "in upper case", str.upper)
_of_text("capitalize", "first letter in upper case, the others in lower case", str.capitalize)
_of_text("title", "Every Word With A Capital", str.title)
_of_text("escape", "`&<>\"'` as HTML entities", _escaped)
_of_text("e", "`escape`, for short", _escaped)
_of_text("forceescape", "`escape`", _escaped)
_of_text("safe", "text as it is (nothing is escaped here unless asked)", lambda text: text)
_of_text("basename", "the last part of a path", lambda text: text.rstrip("/").rpartition("/")[2])
_of_text("dirname", "a path without its last part", lambda text: text.rstrip("/").rpartition("/")[0])


@_filter("without white space around it; `trim(chars)` without those characters")
def _trim(run: Run, value: Any, chars: str | None = None) -> str:
    return _made(run, _text(run, value).strip(chars))


@_filter("`replace(old, new, count)`")
def _replace(run: Run, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replace_text(run, _text(run, value), to_text(run, old), to_text(run, new), -1 if count is None else count)


@_filter("shortened to `truncate(length=255, killwords=false, end='...', leeway=5)`")
def _truncate(
    run: Run, value: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 5
) -> str:
    if length < len(end):
        raise TemplateError(f"truncate: the length must be at least {len(end)}, the length of the end")
    text = _text(run, value)
    if len(text) <= length + leeway:
        return text
    kept = text[: length - len(end)]
    return _made(run, (kept if killwords else kept.rsplit(" ", 1)[0]) + end)


@_filter("padded on both sides to a width (80)")
def _center(run: Run, value: Any, width: int = 80) -> str:
    text = _text(run, value)
    return text.center(padding(run, text, width))


@_filter("padded on the right to a width, `ljust(10, '.')`")
def _ljust(run: Run, value: Any, width: int, fill: str = " ") -> str:
    text = _text(run, value)
    return text.ljust(padding(run, text, width), fill)


@_filter("padded on the left to a width, `rjust(10, '0')`")
def _rjust(run: Run, value: Any, width: int, fill: str = " ") -> str:
    text = _text(run, value)
    return text.rjust(padding(run, text, width), fill)


@_filter("every line but the first moved in by a width (4) or a text; `indent(2, first=true, blank=true)`")
def _indent(run: Run, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    text = _text(run, value)
    space = width if isinstance(width, str) else " " * padding(run, "", width)
    lines = split_lines(run, text, True)
    run.spend_text(len(text) + len(lines) * len(space))
    moved = [
        line if number == 0 and not first else (space + line if blank or line.strip() else line)
        for number, line in enumerate(lines)
    ]
    return "".join(moved)


@_filter("lines of at most a width (79): `wordwrap(width, break_long_words, wrapstring)`")
def _wordwrap(run: Run, value: Any, width: int = 79, break_long_words: bool = True, wrapstring: str = "\n") -> str:
    text = _text(run, value)
    if width < 1:
        raise TemplateError("wordwrap: the width must be at least 1")
    run.spend(len(text))
    run.spend_text(len(text) * (1 + len(wrapstring)))
    lines = [
        wrapstring.join(
            textwrap.wrap(line, width, expand_tabs=False, replace_whitespace=False, break_long_words=break_long_words)
        )
        for line in text.splitlines()
    ]
    return wrapstring.join(lines)


@_filter("how many words")
def _wordcount(run: Run, value: Any) -> int:
    return len(split_text(run, _text(run, value)))


@_filter("text without markup, white space collapsed")
def _striptags(run: Run, value: Any) -> str:
    text = _text(run, value)
    run.spend(1 + (len(text) >> 3))
    kept: list[str] = []
    for piece in text.split("<"):
        if not kept:
            kept.append(piece)
            continue
        kept.append(piece.rpartition(">")[2] if ">" not in piece else piece.partition(">")[2])
    return _made(run, " ".join("".join(kept).split()))


@_filter("split at a separator (white space), at most so many times: `split(',', 2)`")
def _split(run: Run, value: Any, separator: str | None = None, maxsplit: int = -1) -> list[str]:
    return split_text(run, _text(run, value), separator, maxsplit)


@_filter("the lines of a text")
def _splitlines(run: Run, value: Any) -> list[str]:
    return split_lines(run, _text(run, value))


@_filter("`'%s of %d' | format(a, b)`: Python's % formatting; with `{}` in it, `str.format`", "format")
def _format(run: Run, value: Any, *args: Any, **kwargs: Any) -> str:
    text = _text(run, value)
    if args and kwargs:
        raise TemplateError("format: values by position or by name, not both")
    if "%" not in text and "{" in text:
        return format_text(run, text, *args, **kwargs)
    return format_percent(run, text, kwargs or args)


@_filter("the first match of a regular expression, or none; of its groups a list when it has several")
def _regex_search(run: Run, value: Any, pattern: str, ignorecase: bool = False) -> Any:
    found = regex.search(run, pattern, _text(run, value), ignorecase=ignorecase)
    if found is None:
        return None
    groups = found.groups()
    return found.group(0) if not groups else (groups[0] if len(groups) == 1 else list(groups))


@_filter("whether a regular expression matches from the beginning")
def _regex_match(run: Run, value: Any, pattern: str, ignorecase: bool = False) -> bool:
    return regex.match(run, pattern, _text(run, value), ignorecase=ignorecase) is not None


@_filter("all matches of a regular expression")
def _regex_findall(run: Run, value: Any, pattern: str, ignorecase: bool = False) -> list[Any]:
    return regex.findall(run, pattern, _text(run, value), ignorecase=ignorecase)


@_filter("every match replaced; `\\1` in the replacement is the first group")
def _regex_replace(run: Run, value: Any, pattern: str, replacement: str = "", ignorecase: bool = False) -> str:
    return regex.replace(run, pattern, replacement, _text(run, value), ignorecase=ignorecase)


# ── encodings ───────────────────────────────────────────────────────────────────────────


@_filter("JSON text; `tojson(indent=2)`, `tojson(sort_keys=true)`", "tojson", "to_json")
def _tojson(run: Run, value: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    if indent is not None and not 0 <= indent <= 100:
        too_much("an indent beyond 100")
    data = plain(value, run)
    length = measure(run, data)
    if indent is not None:
        length += _lines(data) * (indent + 1)
    run.spend_text(length)
    try:
        return json.dumps(data, ensure_ascii=False, indent=indent, sort_keys=sort_keys)
    except RecursionError:
        too_much("data that is nested too deeply")


def _lines(data: Any) -> int:
    """How many lines data has at least, written with an indent."""
    if not isinstance(data, (list, dict)):
        return 0
    below = data.values() if isinstance(data, dict) else data
    return 1 + len(data) + sum(_lines(each) for each in below if isinstance(each, (list, dict)))


@_filter("data read from JSON text", "fromjson", "from_json")
def _fromjson(run: Run, value: Any) -> Any:
    if not isinstance(value, str):
        if isinstance(value, (dict, list)):
            return value
        raise TemplateError(f"fromjson reads text, not {kind_of(value)}")
    run.spend(1 + (len(value) >> 3))
    try:
        return json.loads(value)
    except ValueError as problem:
        raise TemplateError(f"fromjson: the text is not JSON: {problem}") from None
    except RecursionError:
        too_much("JSON that is nested too deeply")


@_filter("base64 of text (UTF-8)", "b64encode")
def _b64encode(run: Run, value: Any) -> str:
    data = value if isinstance(value, bytes) else _text(run, value).encode()
    run.spend_text(len(data) * 4 // 3 + 4)
    return base64.b64encode(data).decode()


@_filter("text (UTF-8) out of base64", "b64decode")
def _b64decode(run: Run, value: Any) -> str:
    text = _text(run, value)
    run.spend_text(len(text))
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        raise TemplateError("b64decode: this is not base64 of UTF-8 text") from None


def _digest(name: str) -> None:
    def digest(run: Run, value: Any) -> str:
        data = value if isinstance(value, bytes) else _text(run, value).encode()
        return hashlib.new(name, data, usedforsecurity=False).hexdigest()

    FILTERS[name] = Filter(digest, f"the {name.upper()} digest of text, in hexadecimal")


for _name in ("sha256", "sha512", "sha1", "md5"):
    _digest(_name)


@_filter("the digest of text by a named algorithm: `hash('sha256')`", "hash")
def _hash(run: Run, value: Any, algorithm: str = "sha256") -> str:
    if algorithm not in ("sha256", "sha512", "sha1", "md5"):
        raise TemplateError(f'hash: "{algorithm}" is not known; sha256, sha512, sha1 and md5 are')
    digest: str = FILTERS[algorithm].function(run, value)
    return digest


@_filter("text safe inside a URL's path; of a mapping or a list of pairs, a query string", "urlencode")
def _urlencode(run: Run, value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [(to_text(run, key), to_text(run, each)) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(to_text(run, key), to_text(run, each)) for key, each in value]
    else:
        text = _text(run, value)
        run.spend_text(len(text) * 3)
        return quote(text, safe="/")
    run.spend(1 + (len(pairs) >> 2))
    run.spend_text(sum(len(key) + len(text) for key, text in pairs) * 3)
    return urlencode(pairs, quote_via=quote)


@_filter("text out of a URL")
def _urldecode(run: Run, value: Any) -> str:
    return _made(run, unquote(_text(run, value)))


@_filter("text as one word of a shell command", "quote")
def _quote(run: Run, value: Any) -> str:
    text = _text(run, value)
    run.spend_text(len(text) * 5)
    return "'" + text.replace("'", "'\"'\"'") + "'"


@_filter("attributes of an HTML tag out of a mapping")
def _xmlattr(run: Run, value: Any, autospace: bool = True) -> str:
    if not isinstance(value, Mapping):
        raise TemplateError(f"xmlattr needs a mapping, not {kind_of(value)}")
    parts = []
    for key, each_value in value.items():
        if each_value is None:
            continue
        name = to_text(run, key)
        if any(sign in name for sign in " />=\t\n\f\r\"'"):
            raise TemplateError(f'xmlattr: "{name[:40]}" is not a name of an attribute')
        parts.append(f'{html_escape(name)}="{html_escape(to_text(run, each_value))}"')
    text = join_texts(run, " ", parts)
    return " " + text if autospace and text else text


@_filter("a value as people read it, over several lines when it is long")
def _pprint(run: Run, value: Any) -> str:
    text = to_text(run, value)
    return text if len(text) <= 80 else str(_tojson(run, value, indent=2))


# ── lists and mappings ──────────────────────────────────────────────────────────────────


def _getter(run: Run, attribute: Any, default: Any = None, *, lower: bool = False) -> Callable[[Any], Any]:
    """Reads `a.b.0` from an element; text in lower case when case does not count."""
    keys: list[Any] = []
    if attribute is not None:
        keys = (
            [attribute]
            if isinstance(attribute, int)
            else [int(part) if part.isdigit() else part for part in str(attribute).split(".")]
        )

    def get(element: Any) -> Any:
        for key in keys:
            element = lookup(element, key)
        if isinstance(element, Undefined):
            if default is not None:
                return default
            if element.path is None:
                element.path = str(attribute)
            return element
        return element.lower() if lower and isinstance(element, str) else element

    return get


def _compared(run: Run, elements: Any) -> None:
    """Count the comparisons that sorting does."""
    run.spend(run.weight_of(elements))


@_filter("how many elements, keys or characters", "length", "count")
def _length(run: Run, value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        raise TemplateError(f"{kind_of(value)} has no length") from None


@_filter("the first element")
def _first(run: Run, value: Any) -> Any:
    for element in _elements(run, value):
        return element
    return Undefined("the list is empty, so it has no first element")


@_filter("the last element")
def _last(run: Run, value: Any) -> Any:
    elements = _elements(run, value)
    return elements[-1] if elements else Undefined("the list is empty, so it has no last element")


@_filter("one element by chance, drawn and recorded like `random()`", "random")
def _random(run: Run, value: Any) -> Any:
    from noetl.expr.functions import FUNCTIONS

    elements = _elements(run, value)
    if not elements:
        return Undefined("the list is empty, so none of its elements can be drawn")
    drawn = FUNCTIONS["random"][0].function(run)
    return elements[min(int(drawn * len(elements)), len(elements) - 1)]


@_filter("the elements as text, joined: `join(', ')`, `join(', ', attribute='name')`")
def _join(run: Run, value: Any, separator: str = "", attribute: Any = None) -> str:
    elements: Iterable[Any] = _elements(run, value)
    if attribute is not None:
        get = _getter(run, attribute)
        elements = [get(element) for element in elements]
    return join_texts(run, to_text(run, separator), elements)


@_filter("the other way round; of text too")
def _reverse(run: Run, value: Any) -> Any:
    if isinstance(value, str):
        return value[::-1]
    return _elements(run, value)[::-1]


@_filter("sorted: `sort(reverse=false, case_sensitive=false, attribute='a,b')`")
def _sort(
    run: Run, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    elements = _elements(run, value)
    _compared(run, elements)
    parts = str(attribute).split(",") if isinstance(attribute, str) else [attribute]
    getters = [_getter(run, part, lower=not case_sensitive) for part in parts]
    if len(getters) == 1:
        return sorted(elements, key=getters[0], reverse=reverse)
    return sorted(elements, key=lambda element: [get(element) for get in getters], reverse=reverse)


@_filter("the pairs of a mapping, sorted: `dictsort(case_sensitive=false, by='key', reverse=false)`", plain=False)
def _dictsort(run: Run, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False) -> list[Any]:
    if by not in ("key", "value"):
        raise TemplateError('dictsort: by is "key" or "value"')
    at = 0 if by == "key" else 1
    _compared(run, value)
    get = _getter(run, None, lower=not case_sensitive)
    return sorted(_pairs(run, value), key=lambda pair: get(pair[at]), reverse=reverse)


def _pairs(run: Run, value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise TemplateError(f"a mapping is needed, not {kind_of(value)}")
    run.spend(1 + (len(value) >> 2))
    return list(value.items())


@_filter("the pairs of a mapping", raw=True, plain=False)
def _items(run: Run, value: Any) -> list[Any]:
    return [] if isinstance(value, Missing) else list(_pairs(run, unwrap(value)))


@_filter("a mapping as a list of `{key, value}`; `dict2items(key_name, value_name)`")
def _dict2items(run: Run, value: Any, key_name: str = "key", value_name: str = "value") -> list[Any]:
    return [{key_name: key, value_name: each_value} for key, each_value in _pairs(run, value)]


@_filter("a mapping out of a list of `{key, value}`; `items2dict(key_name, value_name)`", plain=False)
def _items2dict(run: Run, value: Any, key_name: str = "key", value_name: str = "value") -> dict[Any, Any]:
    return {unwrap(lookup(element, key_name)): unwrap(lookup(element, value_name)) for element in _elements(run, value)}


@_filter("without repetitions, in order; `unique(case_sensitive=false, attribute='id')`")
def _unique(run: Run, value: Any, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
    get = _getter(run, attribute, lower=not case_sensitive)
    seen: set[Any] = set()
    kept = []
    for element in _elements(run, value):
        mark = _hashable(run, unwrap(get(element)))
        if mark not in seen:
            seen.add(mark)
            kept.append(element)
    return kept


def _hashable(run: Run, value: Any) -> Any:
    """Data as something that a set can hold."""
    if isinstance(value, Mapping):
        run.spend(1 + len(value))
        return ("mapping", frozenset((key, _hashable(run, each)) for key, each in value.items()))
    if isinstance(value, (list, tuple)):
        run.spend(1 + len(value))
        return ("list", *[_hashable(run, each) for each in value])
    return value


@_filter("the smallest element; `min(case_sensitive=false, attribute='n')`", "min")
def _min(run: Run, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
    elements = _elements(run, value)
    if not elements:
        return Undefined("the list is empty, so it has no smallest element")
    _compared(run, elements)
    return min(elements, key=_getter(run, attribute, lower=not case_sensitive))


@_filter("the largest element; `max(case_sensitive=false, attribute='n')`", "max")
def _max(run: Run, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
    elements = _elements(run, value)
    if not elements:
        return Undefined("the list is empty, so it has no largest element")
    _compared(run, elements)
    return max(elements, key=_getter(run, attribute, lower=not case_sensitive))


@_filter("all elements added up: `sum(attribute='n', start=0)`", "sum")
def _sum(run: Run, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    get = _getter(run, attribute)
    total = start
    for element in _elements(run, value):
        total = add(run, total, get(element))
    return total


@_filter("lists of so many elements each: `batch(3, fill)`")
def _batch(run: Run, value: Any, linecount: int, fill_with: Any = None) -> list[Any]:
    if linecount < 1:
        raise TemplateError("batch: at least 1 element in each")
    elements = _elements(run, value)
    rows = [elements[at : at + linecount] for at in range(0, len(elements), linecount)]
    if fill_with is not None and rows:
        run.spend_items(linecount)
        rows[-1] += [fill_with] * (linecount - len(rows[-1]))
    return rows


@_filter("so many lists with the elements spread over them: `slice(3, fill)`", "slice")
def _slice(run: Run, value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    if slices < 1:
        raise TemplateError("slice: at least 1 list")
    elements = _elements(run, value)
    run.spend_items(slices)
    per_slice, more = divmod(len(elements), slices)
    made, at = [], 0
    for number in range(slices):
        size = per_slice + (1 if number < more else 0)
        part = elements[at : at + size]
        at += size
        if fill_with is not None and number >= more and more:
            part.append(fill_with)
        made.append(part)
    return made


@_filter(
    "`groupby('city')`: a list of `(value, elements)`, sorted; `groupby(attribute, default, case_sensitive)`",
    plain=False,
)
def _groupby(run: Run, value: Any, attribute: Any, default: Any = None, case_sensitive: bool = False) -> list[Any]:
    get = _getter(run, attribute, default)
    fold = _getter(run, None, lower=not case_sensitive)
    elements = _elements(run, value)
    _compared(run, elements)
    groups: list[list[Any]] = []
    before: Any = None
    for element in sorted(elements, key=lambda element: fold(get(element))):
        mark = fold(get(element))
        if not groups or mark != before:
            groups.append([get(element), []])
            before = mark
        groups[-1][1].append(element)
    return [Group(key, run.weigh(group)) for key, group in groups]


@_filter("each element changed: `map('upper')`, `map(attribute='name', default='')`", "map", plain=False)
def _map(run: Run, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    elements = _elements(run, value)
    run.spend(len(elements))
    if not args and "attribute" in kwargs:
        get = _getter(run, kwargs.pop("attribute"), kwargs.pop("default", None))
        if kwargs:
            raise TemplateError(f'map: "{next(iter(kwargs))}" is not one of its options')
        return [get(element) for element in elements]
    if not args:
        raise TemplateError("map needs the name of a filter, or attribute=...")
    name, *rest = args
    return [apply(run, name, element, rest, kwargs) for element in elements]


def _chosen(
    run: Run, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, keep: bool, by: bool
) -> list[Any]:
    from noetl.expr.predicates import check

    elements = _elements(run, value)
    run.spend(len(elements))
    rest = args
    get: Callable[[Any], Any] = lambda element: element  # noqa: E731
    if by:
        if not rest:
            raise TemplateError("the name of a field is needed")
        get, rest = _getter(run, rest[0]), rest[1:]
    if not rest:
        return [
            element for element in elements if bool(None if isinstance(got := get(element), Undefined) else got) is keep
        ]
    name, *more = rest
    return [element for element in elements if check(run, name, get(element), more, kwargs) is keep]


@_filter("the elements that pass a test: `select('odd')`; without one, those that hold")
def _select(run: Run, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(run, value, args, kwargs, keep=True, by=False)


@_filter("the elements that do not pass a test")
def _reject(run: Run, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(run, value, args, kwargs, keep=False, by=False)


@_filter("the elements of which a field passes a test: `selectattr('age', 'gt', 17)`")
def _selectattr(run: Run, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(run, value, args, kwargs, keep=True, by=True)


@_filter("the elements of which a field does not pass a test")
def _rejectattr(run: Run, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(run, value, args, kwargs, keep=False, by=True)


@_filter("one field of a value: `x | attr('name')` is `x.name`", raw=True)
def _attr(run: Run, value: Any, name: Any) -> Any:
    return lookup(value, unwrap(name))


@_filter("that field of every element: `pluck('id')` is `map(attribute='id')`")
def _pluck(run: Run, value: Any, attribute: Any, default: Any = None) -> list[Any]:
    return [unwrap(element) for element in _map(run, value, attribute=attribute, default=default)]


@_filter("lists in a list made one list; `flatten(1)` goes one level deep only")
def _flatten(run: Run, value: Any, levels: int | None = None) -> list[Any]:
    made: list[Any] = []

    def walk(elements: Iterable[Any], depth: int) -> None:
        for element in elements:
            run.spend(1)
            if isinstance(element, (list, tuple)) and (levels is None or depth < levels):
                walk(element, depth + 1)
            else:
                made.append(element)

    walk(_elements(run, value), 0)
    return made


@_filter("lists side by side: `a | zip(b)` is `[[a0, b0], ...]`", "zip")
def _zip(run: Run, value: Any, *others: Any) -> list[Any]:
    lists = [_elements(run, value), *(_elements(run, other) for other in others)]
    run.spend(sum(map(len, lists)) >> 2)
    return [list(row) for row in zip(*lists, strict=False)]


@_filter("mappings laid over each other, the last wins: `a | combine(b, recursive=true)`", "combine", "merge")
def _combine(run: Run, value: Any, *others: Any, recursive: bool = False) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in (value, *others):
        if not isinstance(layer, Mapping):
            raise TemplateError(f"combine lays mappings over each other, not {kind_of(layer)}")
        run.spend(1 + (len(layer) >> 2))
        merged = deep_merge(merged, layer) if recursive else {**merged, **layer}
    return merged


def _marks(run: Run, value: Any) -> set[Any]:
    return {_hashable(run, element) for element in _elements(run, value)}


@_filter("the elements that are in both lists")
def _intersect(run: Run, value: Any, other: Any) -> list[Any]:
    marks = _marks(run, other)
    return [element for element in _unique(run, value, True) if _hashable(run, element) in marks]


@_filter("the elements that are not in the other list")
def _difference(run: Run, value: Any, other: Any) -> list[Any]:
    marks = _marks(run, other)
    return [element for element in _unique(run, value, True) if _hashable(run, element) not in marks]


@_filter("the elements of both lists, each once")
def _union(run: Run, value: Any, other: Any) -> list[Any]:
    return list(_unique(run, add(run, _elements(run, value), _elements(run, other)), True))


# ── dates ───────────────────────────────────────────────────────────────────────────────

FILTERS["strftime"] = Filter(dates.strftime, "a date in a format: `now() | strftime('%d.%m.%Y')`")
FILTERS["date"] = Filter(
    lambda run, value, layout="%Y-%m-%d": dates.strftime(run, value, layout), "a date as `2026-03-01`, or in a format"
)
FILTERS["to_datetime"] = Filter(dates.to_datetime, "a date as ISO 8601 text; `to_datetime('%d.%m.%Y')` reads a format")
FILTERS["timestamp"] = Filter(dates.timestamp, "a date as seconds since 1970")
FILTERS["date_add"] = Filter(dates.date_add, "a date moved: `date_add('1d 2h')`, `date_add(days=1)`, `date_add(-3600)`")
FILTERS["date_diff"] = Filter(dates.date_diff, "seconds from another date to this one: `end | date_diff(start)`")
