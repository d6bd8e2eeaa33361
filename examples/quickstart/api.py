"""A small shop API for the quickstart: three paged collections, with occasional 503 responses.

The data is the same on every run. The first request of every seventh page returns 503, so that
the retry rule of the playbook is used.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LATENCY = 0.02
MAX_PAGE_SIZE = 200
COUNTRIES = ("Austria", "Brazil", "Canada", "Denmark", "Estonia", "France", "Ghana")
GOODS = ("kettle", "lamp", "chair", "mug", "rug", "clock", "shelf", "plant")


def collections() -> dict[str, list[dict[str, Any]]]:
    """Customers, products and orders, generated with a fixed seed."""
    generator = random.Random(2026)
    customers = [
        {"id": number, "name": f"Customer {number}", "country": generator.choice(COUNTRIES)} for number in range(1, 121)
    ]
    products = [
        {
            "id": number,
            "title": f"{generator.choice(GOODS)} no. {number}",
            "price": generator.randrange(300, 20_000) / 100,
        }
        for number in range(1, 61)
    ]
    orders = [
        {
            "id": number,
            "customer_id": generator.choice(customers)["id"],
            "product_id": generator.choice(products)["id"],
            "quantity": generator.randint(1, 5),
        }
        for number in range(1, 601)
    ]
    return {"customers": customers, "products": products, "orders": orders}


class ShopServer(ThreadingHTTPServer):
    """The API with its data and the pages for which it has returned 503."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), ShopHandler)
        self.data = collections()
        self.rejected: set[tuple[str, int]] = set()
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def is_busy(self, name: str, page: int) -> bool:
        """Whether this request gets a 503."""
        with self.lock:
            if (len(name) + page) % 7 or (name, page) in self.rejected:
                return False
            self.rejected.add((name, page))
            return True


class ShopHandler(BaseHTTPRequestHandler):
    """GET /customers, /products or /orders with `page` (from 1) and `page_size`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are separate small writes
    server: ShopServer

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        name = address.path.strip("/")
        query = parse_qs(address.query)
        try:
            page = int(query.get("page", ["1"])[0])
            size = int(query.get("page_size", ["20"])[0])
        except ValueError:
            return self.respond(400, {"error": "page and page_size must be integers"})
        if name not in self.server.data:
            return self.respond(404, {"error": f"unknown collection {name!r}", "collections": sorted(self.server.data)})
        if page < 1 or not 1 <= size <= MAX_PAGE_SIZE:
            return self.respond(400, {"error": f"page must be at least 1, page_size between 1 and {MAX_PAGE_SIZE}"})
        time.sleep(LATENCY)
        if self.server.is_busy(name, page):
            return self.respond(503, {"error": "busy, try again"})
        rows = self.server.data[name]
        return self.respond(
            200,
            {
                "items": rows[(page - 1) * size : page * size],
                "page": page,
                "pages": -(-len(rows) // size),
                "total": len(rows),
            },
        )

    def respond(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description="The API of the quickstart.")
    parser.add_argument("--port", type=int, default=8765)
    server = ShopServer(parser.parse_args().port)
    print(f"serving {server.url}/customers, /products and /orders; press Ctrl-C to stop", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
