"""A small API for trying the playbook: GET /orders?page=N gives 20 orders, three pages in all. Replace it by yours."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PAGES = 3
PAGE_SIZE = 20


class Api(BaseHTTPRequestHandler):
    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query)
        page = int(query.get("page", ["1"])[0])
        first = (page - 1) * PAGE_SIZE
        orders = [{"id": n, "customer": f"c{n % 7}", "amount": n * 3} for n in range(first + 1, first + PAGE_SIZE + 1)]
        body = {"orders": orders, "next_page": page + 1 if page < PAGES else None}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8765), Api).serve_forever()
