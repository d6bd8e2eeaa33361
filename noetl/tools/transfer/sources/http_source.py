"""HTTP source: rows of one response, or of all pages of an API.

`pages` defines how the next page is requested:

    pages: link                                   the Link header with rel="next"
    pages: {next: "{{ page.data.next_url }}"}     a URL, or a mapping of query parameters; an empty value ends it
    pages: {param: page, start: 1, step: 1}       a query parameter that is incremented; an empty page ends it

Templates read `page`: `data` (the body), `index` (from 0), `count` (rows of this page) and `http`.
The next page is fetched while the rows of the current one are written. A large page is in a temporary file until then,
unless a template reads its rows. With `marks`, a mark with the position of the next page follows the rows of each page.
A load that starts at such a position requests only the page before it again: if that one does not end with the same
row, rows have moved between the pages, and those after the position are not all that were not read.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from msgspec import Struct
from msgspec.structs import replace

from noetl.core.model.outcome import Outcome, error_info
from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.http import task as http_task
from noetl.tools.transfer.chunks import Mark, TemplateRenderer, reads_name
from noetl.tools.transfer.failures import ResponseError
from noetl.tools.transfer.progress.load_progress import fingerprint
from noetl.tools.transfer.quarantine.bad_rows import NumberedRows, SourceRows
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder, find_rows
from noetl.tools.transfer.sources.large_pages import LARGE_PAGE, LargePages, LargeRows, read_rows
from noetl.tools.transfer.transfer_plan import Plan

PREFETCH = 2
ATTEMPTS, DELAY, MAX_DELAY = 3, 0.5, 30.0  # retries of a failed page
MAX_PAGES = 1_000_000
_REQUEST_FIELDS = (
    "method",
    "headers",
    "json",
    "form",
    "body",
    "auth",
    "params",
    "verify",
    "ca",
    "cert",
    "key",
    "proxy",
)
_IN_TARGET = (
    "Its rows before this page are in the target; to load all again, delete them and its row in noetl_load_progress"
)
_NEXT_LINK = re.compile(r'<([^>]*)>\s*;[^,]*rel="?next"?', re.IGNORECASE)


class Page(Struct, frozen=True):
    """One response."""

    index: int
    url: str
    data: Any
    http: Mapping[str, Any]
    rows: list[dict[str, Any]] | LargeRows
    missing: bool = False
    position: Mapping[str, Any] = {}  # what it was requested with
    following: dict[str, Any] | None = None  # the position of the next page

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.rows.size if isinstance(self.rows, LargeRows) else len(self.rows)

    def template_values(self) -> dict[str, Any]:
        """The value of `page` in templates."""
        return {"data": self.data, "index": self.index, "count": self.count, "http": self.http}


class HttpSource:
    """The rows of an HTTP API."""

    def __init__(self, call: ToolCall, fields: Mapping[str, Any], plan: Plan, rows: SourceRows | None = None) -> None:
        self._call = call
        self._rows = rows
        self._fields = fields
        self._path = plan.path
        self._evolves = plan.evolves
        self._templates = TemplateRenderer(call)
        self._large = LargePages()
        if not isinstance(fields.get("url"), str):
            raise BadInput("the source requires the `url` of the API")
        self.marks = False
        self.position: dict[str, Any] | None = None  # of the first page; None: the beginning
        self.may_restart = True  # from the beginning, if the API refuses the page at `position`
        pages = fields.get("pages")
        self._pages: dict[str, Any] = {"link": True} if pages == "link" else dict(pages or {})
        if pages and not {"link", "next", "param"} & set(self._pages):
            raise BadInput("`pages` must be `link`, {next: template} or {param: name, start, step}")
        if "start" not in self._pages and int(self._pages.get("step") or 1) != 1:
            raise BadInput("`pages.step` needs `start`: 0 if the API counts rows from 0 (an offset), 1 if from 1")

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows of all pages."""
        builder = BatchBuilder(self._fields.get("types"), "the source", evolves=self._evolves)
        pages = (
            self._numbered_pages() if self._pages.get("param") and not self._pages.get("next") else self._linked_pages()
        )
        async with aclosing(pages):
            async for page in pages:
                last: Any = None
                numbered = NumberedRows(self._rows, f"{page.url} (page {page.index + 1})")
                if isinstance(page.rows, LargeRows):
                    builder.learn(page.rows.seen)
                    fetch = partial(next, page.rows.pieces(), None)
                    while rows := await in_thread(fetch):
                        last = rows[-1]
                        for batch in numbered.built(builder.fitted, rows):
                            yield batch
                elif page.rows:
                    last = page.rows[-1]
                    for batch in numbered.built(builder.batch, page.rows):
                        yield batch
                if self.marks and page.following is not None:
                    yield Mark({**page.following, "previous": {"at": page.position, "last": fingerprint(last)}}, {})

    async def count(self) -> int | None:
        """Not known in advance."""
        return None

    async def close(self) -> None:
        """Remove the files of large pages."""
        await in_thread(self._large.close)

    async def _linked_pages(self) -> AsyncGenerator[Page, None]:
        """Pages that each contain the link to the next one."""
        await self._check_position()
        position = {name: value for name, value in (self.position or {}).items() if name != "previous"}
        pending: asyncio.Task[Page] | None = asyncio.create_task(self._first(position))
        seen: set[str] = set()
        try:
            while pending is not None:
                page = await pending
                pending = None
                own, following = position, self._next(page, position)
                if following is not None:
                    position = {**following, "page": page.index + 1}
                    request = f"{following}"
                    if request in seen or page.index + 1 >= MAX_PAGES:
                        raise BadInput(f"cycle in the pages: {self._request_of(position)[0]} was already fetched")
                    seen.add(request)
                    pending = asyncio.create_task(self._fetch(page.index + 1, *self._request_of(position)))
                    page = replace(page, position=own, following=position)
                yield page
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait([pending])

    def _request_of(self, position: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The URL and the parameters of the page at a position: what it replaces of the fields."""
        given: dict[str, Any] = dict(position.get("params") or {})
        if position.get("url"):
            return str(position["url"]), given
        params = dict(self._fields.get("params") or {})
        if self._pages.get("param") and self._pages.get("start") is not None:
            params[str(self._pages["param"])] = self._pages["start"]
        return str(self._fields["url"]), {**params, **given}

    async def _check_position(self) -> None:
        """Start from the beginning if rows have moved between the pages since the position was stored."""
        position = self.position or {}
        previous = position.get("previous")
        if previous is None:
            return
        index, numbered = int(previous["at"].get("page") or 0), not {"link", "next"} & set(self._pages)
        request = self._numbered_request(index) if numbered else self._request_of(previous["at"])
        try:
            page = await self._fetch(index, *request, may_be_missing=numbered)
        except ResponseError as refused:
            if refused.info.retryable:
                raise
            return  # as a token that is valid once
        if fingerprint(await in_thread(lambda: _last_row(page.rows))) == previous["last"]:
            return
        moved = f"page {index + 1} of the API has other rows than when the last load has stopped after it"
        if not self.may_restart:
            raise BadInput(f"{moved}. {_IN_TARGET}")
        self._call.host.log(f"{moved}, loading from the first page")
        self.position = None

    async def _first(self, position: Mapping[str, Any]) -> Page:
        """The page at a position; the first one, if the API does not know the position any more."""
        try:
            return await self._fetch(int(position.get("page") or 0), *self._request_of(position))
        except ResponseError as refused:
            if not position or refused.info.retryable:
                raise
            if not self.may_restart:
                stopped = f"page {position['page'] + 1}, where the last load has stopped"
                message = f"{stopped}: {refused.info.message}. {_IN_TARGET}"
                raise ResponseError(replace(refused.info, message=message)) from refused
            reason = refused.info.message
            self._call.host.log(f"the page where the last load has stopped is gone, loading from the first: {reason}")
            self.position = None
        return await self._fetch(0, *self._request_of({}))

    def _next(self, page: Page, position: Mapping[str, Any]) -> dict[str, Any] | None:
        """The position of the next page: a URL, or parameters that are added to those of this page."""
        if self._pages.get("link"):
            headers = {name.lower(): value for name, value in (page.http.get("headers") or {}).items()}
            found = _NEXT_LINK.search(str(headers.get("link", "")))
            return {"url": urljoin(page.url, found[1])} if found else None
        template = self._pages.get("next")
        if template is None:
            return None
        if not isinstance(template, DeferredTemplate):
            raise BadInput("pages.next must be a template over `page`, as in '{{ page.data.next_url }}'")
        value = self._templates.render(template, page=page.template_values())
        if value in (None, False, "", {}, []) or str(value).lower() in ("none", "null", "false"):
            return None
        if self._pages.get("param") and not isinstance(value, Mapping):
            value = {str(self._pages["param"]): value}
        if isinstance(value, Mapping):
            return {"url": position.get("url"), "params": {**(position.get("params") or {}), **value}}
        if isinstance(value, str):
            return {"url": urljoin(page.url, value)}
        raise BadInput("pages.next must be a URL or a mapping of query parameters; for another value set `param`")

    async def _numbered_pages(self) -> AsyncGenerator[Page, None]:
        """Pages by number: some are prefetched, all are yielded in order."""
        await self._check_position()
        index = int((self.position or {}).get("page") or 0)
        size, last = self._pages.get("size"), self._pages.get("last")
        prefetch = max(1, int(self._pages.get("ahead", PREFETCH)))
        pending: deque[asyncio.Task[Page]] = deque()

        def fetch_next() -> None:
            nonlocal index
            if index < MAX_PAGES and (last is None or self._number(index) <= int(last)):
                fetching = self._fetch(index, *self._numbered_request(index), may_be_missing=index > 0)
                pending.append(asyncio.create_task(fetching))
                index += 1

        try:
            for _ in range(prefetch):
                fetch_next()
            while pending:
                page = await pending.popleft()
                if page.missing or not page.count:
                    return
                until = self._pages.get("until")
                done = isinstance(until, DeferredTemplate) and bool(
                    self._templates.render(until, page=page.template_values())
                )
                short = size is not None and page.count < int(size)
                if not done and not short:
                    fetch_next()
                own, following = {"page": page.index}, {"page": page.index + 1}
                yield page if done or short else replace(page, position=own, following=following)
                if done or short:
                    return
        finally:
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)

    def _number(self, index: int) -> int:
        return int(self._pages.get("start", 1)) + index * int(self._pages.get("step", 1))

    def _numbered_request(self, index: int) -> tuple[str, dict[str, Any]]:
        params = dict(self._fields.get("params") or {})
        return str(self._fields["url"]), {**params, str(self._pages["param"]): self._number(index)}

    async def _request(self, call: ToolCall, fields: dict[str, Any]) -> Outcome:
        """Send one request; retryable errors are retried here, as a retry of the task would fetch all pages again."""
        retry = self._fields.get("retry")
        policy: Mapping[str, Any] = retry if isinstance(retry, Mapping) else {}
        is_safe = str(fields.get("method") or "GET").upper() in ("GET", "HEAD")
        attempts = int(policy.get("attempts") or (ATTEMPTS if is_safe else 1))
        delay = float(policy.get("delay") or DELAY)
        number = 0
        while True:
            number += 1
            outcome: Outcome = await http_task.run(call, fields, self._large.keep)
            if outcome.error is None or not outcome.error.retryable or number >= attempts:
                return outcome
            retry_after = outcome.helpers.get("http", {}).get("retry_after")
            pause = delay * 2 ** (number - 1) if retry_after is None else float(retry_after)
            await asyncio.sleep(min(pause, MAX_DELAY))

    async def _fetch(self, index: int, url: str, params: dict[str, Any], *, may_be_missing: bool = False) -> Page:
        fields = {name: self._fields[name] for name in _REQUEST_FIELDS if self._fields.get(name) is not None}
        fields |= {"url": url, "params": params}
        call = replace(self._call, spec={**self._call.spec, "stream_above": LARGE_PAGE})
        outcome = await self._request(call, fields)
        http = outcome.helpers.get("http", {})
        if outcome.error is not None:
            if may_be_missing and outcome.error.kind == "not_found":
                return Page(index, url, None, http, [], missing=True)
            raise ResponseError(outcome.error)
        address, data = str(http.get("url") or url), outcome.data
        rows: list[dict[str, Any]] | LargeRows = []
        if isinstance(data, Path):
            data = await in_thread(lambda: self._read_large(data, outcome.meta.get("content_type"), http, address))
        if isinstance(data, LargeRows):
            data, rows = data.around, data
        elif data is not None:
            rows = find_rows(data, self._path, f"the response of {url}")
        self._call.host.progress(pages=index + 1)
        return Page(index, address, data, http, rows)

    def _read_large(self, path: Path, header: str | None, http: Mapping[str, Any], url: str) -> Any:
        """The rows of a large response; its data, if they are not a list of objects or a template reads them."""
        mode = str(self._call.spec.get("parse") or "auto")
        templates = [self._pages.get("next"), self._pages.get("until")]
        if http_task.is_utf8_json(header, mode):
            rows = read_rows(path, self._path, lambda at: reads_name(templates, f"page.data.{at}".rstrip(".")))
            if rows is not None:
                path.unlink()
                return rows
        try:
            return http_task.decoded(path.read_bytes(), header, mode)
        except ValueError as wrong:
            message = http_task.invalid_body(http["status"], url, header or mode, wrong)
            raise ResponseError(error_info("parse", message)) from None
        finally:
            path.unlink()


def _last_row(rows: list[dict[str, Any]] | LargeRows) -> Any:
    last: Any = None
    for piece in rows.pieces() if isinstance(rows, LargeRows) else [rows]:
        last = piece[-1] if piece else last
    return last
