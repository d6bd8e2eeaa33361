"""Runs one call: chooses what runs it, and builds the outcome."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from noetl.tool import BadAuth, Outcome, SecretUnavailable, ToolCall, error, ok
from noetl_container import SPEC
from noetl_container.engine import engine, installed
from noetl_container.failures import EngineFailed
from noetl_container.job import BadInput, Container, Output, container_of

MESSAGE_CHARS = 500


async def run(call: ToolCall) -> Outcome:
    """Run the image to its end."""
    helper = dict(SPEC.helpers["container"])
    try:
        wanted = container_of(call)
        runtime = _runtime(str(call.input.get("runtime") or "auto"))
        helper |= {"runtime": runtime, "image": wanted.image}
        if call.input.get("backoff_limit"):
            call.host.log("backoff_limit is not used: the rules of the task decide about attempts", stream="stderr")
        async with asyncio.timeout(wanted.timeout):
            output = await _run(call, wanted, runtime)
    except (BadInput, BadAuth) as wrong:
        return error("schema", str(wrong), container=helper)
    except SecretUnavailable as missing:
        return error("auth", str(missing), container=helper)
    except EngineFailed as failed:
        return error(failed.kind, call.host.mask(str(failed))[:MESSAGE_CHARS], container=helper)
    except TimeoutError:
        message = f"the container ran longer than {wanted.timeout:g} s (spec.timeout); it was stopped and removed"
        return error("timeout", message, container=helper)
    return _outcome(call, wanted, output, helper)


async def _run(call: ToolCall, wanted: Container, runtime: str) -> Output:
    if runtime != "kubernetes":
        return await engine(runtime).run(call, wanted)
    try:
        from noetl_container.kubernetes_job import run_job
    except ModuleNotFoundError as missing:
        if missing.name != "kubernetes_asyncio":
            raise
        message = "kubernetes-asyncio is not installed on this worker: install noetl-container[kubernetes]"
        raise EngineFailed(message, "not_found") from None
    return await run_job(call, wanted)


def _runtime(given: str) -> str:
    if given != "auto":
        return given
    for name in ("podman", "docker"):
        if installed(name):
            return name
    kubeconfig = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if os.environ.get("KUBERNETES_SERVICE_HOST") or Path(kubeconfig.partition(os.pathsep)[0]).exists():
        return "kubernetes"
    raise EngineFailed(
        "this worker has neither podman nor docker, and no Kubernetes cluster: install one of them, or give the step a "
        "worker that has it (`spec.placement`)",
        "not_found",
    )


def _outcome(call: ToolCall, wanted: Container, output: Output, helper: dict[str, Any]) -> Outcome:
    data = {
        "returncode": output.returncode,
        "stdout": output.stdout,
        "stderr": output.stderr,
        "files": output.files,
    }
    helper |= {"returncode": output.returncode, "oom": output.oom}
    meta = {"truncated": True} if output.truncated else {}
    if output.oom:
        message = "the container exceeded its memory limit and was killed"
        return error("limit", message, data=data, meta=meta, container=helper)
    if output.returncode in wanted.ok_codes:
        return ok(data, meta=meta, container=helper)
    message = f"the container exited with status {output.returncode}"
    if output.returncode > 128:
        message += f" (signal {output.returncode - 128})"
    text = output.stderr or output.stdout
    last = output.reason or next((line for line in reversed(text.splitlines()) if line.strip()), "")
    if last:
        message = f"{message}: {last.strip()[:MESSAGE_CHARS]}"
    details = {"returncode": output.returncode}
    return error("shell", message, data=data, meta=meta, details=details, container=helper)
