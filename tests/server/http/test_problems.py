"""Errors of the disk are no bugs: the response names the remedy, and a client may retry."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os

import pytest
from starlette.requests import Request

from noetl.server.http.problems import INTERNAL_ERROR, response_to


def answered(error: Exception) -> tuple[int, str]:
    request = Request(
        {"type": "http", "method": "PUT", "path": "/api/credentials/x", "headers": [], "query_string": b""}
    )
    response = asyncio.run(response_to(request, error))
    return response.status_code, json.loads(response.body)["detail"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE])
def test_a_disk_error_is_temporary(number: int, caplog: pytest.LogCaptureFixture):
    status, detail = answered(OSError(number, os.strerror(number), "/home/x/master.key"))
    assert status == 503 and detail.startswith("/home/x/master.key: ") and detail.endswith("retry")
    assert not caplog.records


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("a bug"), ConnectionResetError(104, "reset")])
def test_other_errors_are_internal_errors(error: Exception, caplog: pytest.LogCaptureFixture):
    assert answered(error) == (500, INTERNAL_ERROR)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
