"""Bundles: the files that travel with playbooks, stored by the digest of their content."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.model.bundle import Bundle, Profile, file_digest
from noetl.errors import NotFound, RequestRefused
from noetl.server.http.dependencies import App, Author, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response

router = APIRouter(tags=["playbooks"])

MAX_FILES = 2_000
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the content")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ProfileBody(Body):
    """Values of one environment."""

    workload: dict[str, Any] = {}
    credentials: dict[str, str] = {}


class BundleBody(Body):
    """Paths and digests of the files of a bundle."""

    files: Annotated[dict[str, Sha256], Field(min_length=1, max_length=MAX_FILES)]
    profile: ProfileBody = ProfileBody()


@router.post("/api/bundles", status_code=201, summary="Store a bundle")
async def add(state: App, _: Author, body: BundleBody) -> Response:
    """The response lists the digests of the files that have to be sent (`missing`)."""
    bundle = Bundle(body.files, Profile(body.profile.workload, body.profile.credentials))
    missing = await state.orchestrator.catalog.bundles.add(bundle)
    return json_response({"digest": bundle.digest, "missing": missing}, 201)


@router.put("/api/files/{digest}", status_code=204, summary="Store a file of a bundle")
async def put_file(state: App, _: Author, request: Request, digest: Digest) -> Response:
    """The body is the content; it must have the digest of the address."""
    content = await request.body()
    if file_digest(content) != digest:
        raise RequestRefused("the content does not have this digest")
    await state.orchestrator.catalog.playbooks.save_files({digest: content})
    return Response(status_code=204)


@router.get("/api/bundles/{digest}", summary="Get the files of a bundle")
async def show(state: App, _: Viewer, digest: Annotated[str, Path(pattern="^[0-9a-f]{32}$")]) -> Response:
    """Paths with the digests of their content, and the profile."""
    found = await state.orchestrator.catalog.playbooks.bundle(digest)
    if found is None:
        raise NotFound(f"there is no bundle {digest}")
    profile = {"workload": found.profile.workload, "credentials": found.profile.credentials}
    return json_response({"digest": digest, "files": found.files, "profile": profile})


@router.get("/api/files/{digest}", summary="Get a file of a bundle")
async def get_file(state: App, _: Viewer, digest: Digest) -> Response:
    """The content as bytes."""
    found = await state.orchestrator.catalog.playbooks.file(digest)
    if found is None:
        raise NotFound(f"there is no file {digest}")
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(found, media_type="application/octet-stream", headers=headers)
