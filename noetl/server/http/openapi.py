"""The OpenAPI document: `/openapi.json`, and `/docs` as a page without scripts.

FastAPI provides paths, parameters and bodies. Added here are the raw routes and what is common to all routes: problem
documents as errors, and the role that a token needs.
"""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import Response

from noetl.server.http.dependencies import Viewer
from noetl.server.http.middleware.fast_path import RawRoute
from noetl.server.http.problems import MEDIA_TYPE, flat_routes
from noetl.server.http.response_models import json_response

router = APIRouter(include_in_schema=False)

_METHODS = ("get", "put", "post", "delete", "patch")
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
    },
}
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font-size:14px}section{border-top:1px solid #8884;padding:.6rem 0}h2{font-size:1rem;margin:0}"
    "td,th{text-align:left;padding:0 1rem 0 0;vertical-align:top}p{margin:.2rem 0}small{opacity:.7}"
)


@router.get("/openapi.json")
async def document(request: Request, _: Viewer) -> Response:
    """The OpenAPI document of this server."""
    return json_response(openapi_document(request.app))


@router.get("/docs")
async def docs(request: Request, _: Viewer) -> Response:
    """The OpenAPI document as an HTML page."""
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return Response(_page(openapi_document(request.app)), media_type="text/html", headers=headers)


def role_of(route: APIRoute) -> str | None:
    """The role that a route requires; None if it requires no token."""
    for dependency in route.dependant.dependencies:
        role = getattr(dependency.call, "role", None)
        if role is not None:
            return str(role)
    return None


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; generated once per application."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = _PROBLEM
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        raw_routes = [each for each in app.routes if isinstance(each, RawRoute) and each.operation is not None]
        found["paths"] = {each.path: {"post": dict(each.operation or {})} for each in raw_routes} | found["paths"]
        for each in raw_routes:
            schemas.update(each.schemas)
        roles = {(each.path, "POST"): each.role for each in raw_routes} | {
            (route.path_format, method): role_of(route)
            for route in flat_routes(app.routes)
            if isinstance(route, APIRoute)
            for method in route.methods or ()
        }
        for path, operations in found["paths"].items():
            for method, operation in operations.items():
                _complete(operation, roles.get((path, method.upper())))
        app.openapi_schema = found
    return app.openapi_schema


def _complete(operation: dict[str, Any], role: str | None) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    schema = {"$ref": "#/components/schemas/Problem"}
    responses["default"] = {"description": "a problem document", "content": {MEDIA_TYPE: {"schema": schema}}}
    if role is not None:
        operation["security"] = [{"token": []}]
        operation["x-role"] = role


def _page(document: dict[str, Any]) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>NoETL API</title>",
        f"<style>{_STYLE}</style><h1>NoETL {escape(document['info']['version'])}: HTTP API</h1>",
        "<p>Errors are problem documents (RFC 9457). Lists are paged: pass <code>next</code> of a page as "
        "<code>before</code> or <code>after</code> of the next request. OpenAPI document: "
        "<code>/openapi.json</code>.</p>",
    ]
    parts += [
        _section(path, method, operations[method])
        for path, operations in document["paths"].items()
        for method in _METHODS
        if method in operations
    ]
    return "".join(parts)


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    role = operation.get("x-role")
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['in'])}"
        f"<td>{escape(each.get('description', ''))}{' <b>required</b>' if each.get('required') else ''}"
        for each in operation.get("parameters", ())
    )
    body = operation.get("requestBody", {}).get("content", {})
    kinds = ", ".join(escape(kind) for kind in body)
    return (
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
        f"<p>{escape(operation.get('summary', ''))}. {escape(operation.get('description', ''))} "
        f"<small>{escape(f'role {role}' if role else 'no token needed')}</small></p>"
        + (f"<table>{rows}</table>" if rows else "")
        + (f"<p><small>body: {kinds}</small></p>" if kinds else "")
        + "</section>"
    )
