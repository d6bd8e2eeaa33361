"""`Retry-After` of an overloaded HTTP server: retries wait as long as it asks, up to `max_delay`."""

import http.server
import threading
import time
from email.utils import formatdate

import pytest


class Overloaded:
    """Answers the first request with an error, and the others with 200."""

    def __init__(self, status: int, header: str) -> None:
        self.times: list[float] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.times.append(time.monotonic())
                first = len(outer.times) == 1
                self.send_response(status if first else 200)
                if first:
                    asked = formatdate(time.time() + 2, usegmt=True) if header == "date" else header
                    self.send_header("Retry-After", asked)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Overloaded":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def pause(self) -> float:
        first, second = self.times
        return second - first


RULE = "spec: {policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3 MOST}}]}}"
OWN = "retry: {attempts: 3, delay: 0 MOST}"


@pytest.mark.parametrize("retry", [RULE, OWN], ids=["rule", "own"])
@pytest.mark.parametrize(
    ("status", "header", "most", "least", "greatest"),
    [
        (429, "1", None, 1.0, 5.0),
        (503, "1", None, 1.0, 5.0),
        (503, "date", None, 0.9, 6.0),
        (429, "60", 0.3, 0.3, 5.0),
        (500, "60", None, 0.0, 5.0),
        (429, "nonsense", None, 0.0, 5.0),
    ],
)
def test_a_retry_waits_as_long_as_the_server_asks(play, retry, status, header, most, least, greatest):
    retry = retry.replace("MOST", f", max_delay: {most}" if most else "")
    with Overloaded(status, header) as server:
        ran = play(f"""
        workflow:
          - step: start
            tool: {{kind: http, url: "{server.url}", {retry}}}
        """)
        assert ran.status == "success", ran.error
        assert least <= server.pause < greatest
