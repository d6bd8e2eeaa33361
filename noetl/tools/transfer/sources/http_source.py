"""Rows of an HTTP API: one answer, or page after page.

`pages` says how to come to the next page:

    pages: link                                   the answer's Link header with rel="next"
    pages: {next: "{{ page.data.next_url }}"}     a URL, or a mapping of query parameters; nothing ends it
    pages: {param: page, start: 1, step: 1}       a query parameter that counts; an empty page ends it

`page` is what a template sees: `data` (the body), `index` (from 0), `count` (rows of this page) and `http`.
The next page is being fetched while the rows of this one are written.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urljoin

from msgspec import Struct
from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate
from noetl.tools._common.sql_task import BadInput
from noetl.tools.http import task as http_task
from noetl.tools.transfer.chunks import Templates
from noetl.tools.transfer.failures import HttpError
from noetl.tools.transfer.sources.arrow_rows import Shaper, rows_at
from noetl.tools.transfer.transfer_plan import Plan

AHEAD = 2
ATTEMPTS, DELAY, MOST_DELAY = 3, 0.5, 30.0  # for a page that fails
MOST_PAGES = 1_000_000
_REQUEST = ("method", "headers", "json", "form", "body", "auth", "params", "verify", "ca", "cert", "key", "proxy")
_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*rel="?next"?', re.IGNORECASE)


class Page(Struct, frozen=True):
    """One answer."""

    index: int
    url: str
    data: Any
    http: Mapping[str, Any]
    rows: list[dict[str, Any]]
    gone: bool = False

    def names(self) -> dict[str, Any]:
        """As templates see it."""
        return {"data": self.data, "index": self.index, "count": len(self.rows), "http": self.http}


class HttpSource:
    """An API."""

    def __init__(self, call: ToolCall, fields: Mapping[str, Any], plan: Plan) -> None:
        self._call = call
        self._fields = fields
        self._path = plan.path
        self._templates = Templates(call)
        if not isinstance(fields.get("url"), str):
            raise BadInput("the source needs the `url` of the API")
        pages = fields.get("pages")
        self._pages: dict[str, Any] = {"link": True} if pages == "link" else dict(pages or {})
        if pages and not {"link", "next", "param"} & set(self._pages):
            raise BadInput("`pages` is `link`, {next: template} or {param: name, start, step}")

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows of all pages."""
        shaper = Shaper(self._fields.get("types"), "the source")
        pages = self._counted() if self._pages.get("param") and not self._pages.get("next") else self._followed()
        async with aclosing(pages):
            async for page in pages:
                if page.rows:
                    yield shaper.batch(page.rows)

    async def count(self) -> int | None:
        """Not known before."""
        return None

    async def close(self) -> None:
        """Nothing is held."""

    async def _followed(self) -> AsyncGenerator[Page, None]:
        """Pages of which each one leads to the next."""
        url, params = str(self._fields["url"]), dict(self._fields.get("params") or {})
        if self._pages.get("param") and self._pages.get("start") is not None:
            params[str(self._pages["param"])] = self._pages["start"]
        waiting: asyncio.Task[Page] | None = asyncio.create_task(self._fetch(0, url, params))
        seen: set[str] = set()
        try:
            while waiting is not None:
                page = await waiting
                waiting = None
                following = self._next(page, url, params)
                if following is not None:
                    url, params = following
                    mark = f"{url} {sorted(params.items())}"
                    if mark in seen or page.index + 1 >= MOST_PAGES:
                        raise BadInput(f"the pages go round in a circle: {url} comes again")
                    seen.add(mark)
                    waiting = asyncio.create_task(self._fetch(page.index + 1, url, params))
                yield page
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.wait([waiting])

    def _next(self, page: Page, url: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        if self._pages.get("link"):
            headers = {name.lower(): value for name, value in (page.http.get("headers") or {}).items()}
            found = _NEXT.search(str(headers.get("link", "")))
            return (urljoin(page.url, found[1]), {}) if found else None
        template = self._pages.get("next")
        if template is None:
            return None
        if not isinstance(template, DeferredTemplate):
            raise BadInput("pages.next is a template over `page`, as in '{{ page.data.next_url }}'")
        value = self._templates.render(template, page=page.names())
        if value in (None, False, "", {}, []) or str(value).lower() in ("none", "null", "false"):
            return None
        if isinstance(value, Mapping):
            return url, {**params, **value}
        if self._pages.get("param"):
            return url, {**params, str(self._pages["param"]): value}
        if isinstance(value, str):
            return urljoin(page.url, value), {}
        raise BadInput("pages.next gives a URL or a mapping of query parameters; for a bare value name its `param`")

    async def _counted(self) -> AsyncGenerator[Page, None]:
        """Pages by number: some are asked for ahead, all are given in order."""
        name = str(self._pages["param"])
        number, step = int(self._pages.get("start", 1)), int(self._pages.get("step", 1))
        size, last = self._pages.get("size"), self._pages.get("last")
        ahead = max(1, int(self._pages.get("ahead", AHEAD)))
        waiting: deque[asyncio.Task[Page]] = deque()
        index = 0

        def ask() -> None:
            nonlocal number, index
            if index < MOST_PAGES and (last is None or number <= int(last)):
                params = {**dict(self._fields.get("params") or {}), name: number}
                fetching = self._fetch(index, str(self._fields["url"]), params, may_be_gone=index > 0)
                waiting.append(asyncio.create_task(fetching))
                number, index = number + step, index + 1

        try:
            for _ in range(ahead):
                ask()
            while waiting:
                page = await waiting.popleft()
                if page.gone or not page.rows:
                    return
                until = self._pages.get("until")
                done = isinstance(until, DeferredTemplate) and bool(self._templates.render(until, page=page.names()))
                short = size is not None and len(page.rows) < int(size)
                if not done and not short:
                    ask()
                yield page
                if done or short:
                    return
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)

    async def _asked(self, call: ToolCall, given: dict[str, Any], nulls: dict[str, Any]) -> Outcome:
        """The answer to one request; what may well work later is tried again, or all pages would be lost with one."""
        retry = self._fields.get("retry")
        known: Mapping[str, Any] = retry if isinstance(retry, Mapping) else {}
        safe = str(given.get("method") or "GET").upper() in ("GET", "HEAD")
        attempts = int(known.get("attempts") or (ATTEMPTS if safe else 1))
        delay = float(known.get("delay") or DELAY)
        number = 0
        while True:
            number += 1
            outcome: Outcome = await http_task.perform(call, given, nulls)
            if outcome.error is None or not outcome.error.retryable or number >= attempts:
                return outcome
            asked_for = outcome.helpers.get("http", {}).get("retry_after")
            await asyncio.sleep(min(delay * 2 ** (number - 1) if asked_for is None else float(asked_for), MOST_DELAY))

    async def _fetch(self, index: int, url: str, params: dict[str, Any], *, may_be_gone: bool = False) -> Page:
        given = {name: self._fields[name] for name in _REQUEST if self._fields.get(name) is not None}
        given |= {"url": url, "params": params}
        nulls = dict.fromkeys(("status", "headers", "url", "elapsed_ms", "request_id", "retry_after"))
        call = replace(self._call, spec={**self._call.spec, "stream_above": 1 << 40})
        outcome = await self._asked(call, given, nulls)
        http = outcome.helpers.get("http", {})
        if outcome.error is not None:
            if may_be_gone and outcome.error.kind == "not_found":
                return Page(index, url, None, http, [], gone=True)
            raise HttpError(outcome.error)
        rows = rows_at(outcome.data, self._path, f"the answer of {url}") if outcome.data is not None else []
        self._call.host.progress(pages=index + 1)
        return Page(index, str(http.get("url") or url), outcome.data, http, rows)
