"""Log records: ids, both formats, and masking."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from noetl.observability import logging as logs
from noetl.runtime.masking import Masker


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def written(root: logging.Logger, form: str) -> str:
    stream = io.StringIO()
    logs.configure(form, stream=stream)
    with logs.log_context(Masker([{"password": "hunter22"}]), execution_id="17", step="load"):
        logging.getLogger("noetl.x").warning("sent %s", "hunter22", extra={"task": "t1"})
        try:
            raise ValueError("token noetl_" + "a" * 43)
        except ValueError:
            logging.getLogger("noetl.x").exception("postgresql://bob:geheim1@db/x did not answer")
    logging.getLogger("noetl.x").info("after")
    return stream.getvalue()


def test_json_records_have_ids_and_no_secrets(root: logging.Logger):
    text = written(root, "json")
    first, second, third = map(json.loads, text.splitlines())
    assert (first["execution_id"], first["step"], first["task"]) == ("17", "load", "t1")
    assert (first["level"], first["logger"], first["message"]) == ("warning", "noetl.x", "sent ***")
    assert second["message"] == "postgresql://***@db/x did not answer"
    assert "ValueError: token ***" in second["exception"]
    assert "execution_id" not in third
    assert "hunter22" not in text and "geheim1" not in text


def test_text_records_end_with_the_ids(root: logging.Logger):
    lines = written(root, "text").splitlines()
    assert lines[0].endswith("WARNING noetl.x: sent ***  [execution_id=17 step=load task=t1]")
    assert lines[-1].endswith("INFO    noetl.x: after")


def test_a_request_is_described_once(root: logging.Logger):
    stream = io.StringIO()
    logs.configure("text", stream=stream)
    fields = {"method": "POST", "path": "/api/execute", "status": 202, "duration_ms": 3.2, "caller": "admin"}
    logging.getLogger("noetl.access").info("POST /api/execute 202", extra=fields)
    assert stream.getvalue().endswith("noetl.access: POST /api/execute 202  [caller=admin duration_ms=3.2]\n")


def test_bearer_tokens_are_masked(root: logging.Logger):
    assert logs.masked("Authorization: Bearer abcdefgh12345678") == "Authorization: Bearer ***"
