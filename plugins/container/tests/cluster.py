"""A local HTTP server with the requests of the Kubernetes API that the plug-in sends.

A pod runs the commands of its containers as processes of this machine, in a folder that stands for its file system:
init containers one after another, then the others. Variables come from Secrets; files of Secrets and empty volumes are
below the folder, and absolute paths of mounts in commands are replaced by paths below it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web

TOKEN = "cluster-token"
TASK_SCRIPT = (("-C /", "-C {root}"), ('-e "/$path"', '-e "{root}/$path"'))


class Cluster:
    """The state of the cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, Any] = {}
        self.secrets: dict[str, Any] = {}
        self.pods: dict[str, Any] = {}
        self.requests: list[str] = []
        self.created: list[Any] = []  # every Job ever
        self.secrets_created: list[Any] = []
        self.break_logs = 0  # connections of logs that are closed early
        self.waiting: dict[str, str] | None = None  # why containers do not start
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, Any] = {}
        self.url = ""
        self.started = asyncio.Event()  # a container runs

    @contextlib.asynccontextmanager
    async def serving(self):
        app = web.Application(middlewares=[self._authorized])
        jobs = "/apis/batch/v1/namespaces/{namespace}/jobs"
        core = "/api/v1/namespaces/{namespace}"
        app.add_routes([
            web.post(jobs, self._create_job), web.get(jobs, self._list_jobs), web.get(jobs + "/{name}", self._job),
            web.patch(jobs + "/{name}", self._patch_job), web.delete(jobs + "/{name}", self._delete_job),
            web.post(core + "/secrets", self._create_secret), web.get(core + "/pods", self._list_pods),
            web.get(core + "/pods/{name}", self._pod), web.get(core + "/pods/{name}/log", self._log),
        ])  # fmt: skip
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            for name in list(self.pods):
                await self._end_pod(name)
            await runner.cleanup()

    # ── requests ────────────────────────────────────────────────────────────────────────

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._status(401, "Unauthorized")
        return await handler(request)

    def _status(self, code: int, message: str) -> web.Response:
        return web.json_response({"kind": "Status", "status": "Failure", "code": code, "message": message}, status=code)

    async def _create_job(self, request: web.Request) -> web.Response:
        job = await request.json()
        name = job["metadata"]["name"]
        if name in self.jobs:
            return self._status(409, f'jobs.batch "{name}" already exists')
        job["metadata"]["uid"] = uuid.uuid4().hex
        job["status"] = {}
        self.jobs[name] = job
        self.created.append(job)
        if not job["spec"].get("suspend"):
            self._start(job)
        return web.json_response(job, status=201)

    async def _patch_job(self, request: web.Request) -> web.Response:
        job = self.jobs[request.match_info["name"]]
        job["spec"] |= (await request.json())["spec"]
        if not job["spec"]["suspend"]:
            self._start(job)
        return web.json_response(job)

    async def _job(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["name"])
        return self._status(404, "not found") if job is None else web.json_response(job)

    async def _list_jobs(self, request: web.Request) -> web.Response:
        return web.json_response({"items": [j for j in self.jobs.values() if _selected(request, j)]})

    async def _delete_job(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["name"])
        if job is None:
            return self._status(404, "not found")
        body = await request.json()
        wanted = (body.get("preconditions") or {}).get("uid")
        uid = job["metadata"]["uid"]
        if wanted not in (None, uid):
            return self._status(409, "the UID in the precondition does not match")
        del self.jobs[job["metadata"]["name"]]
        for name, secret in list(self.secrets.items()):
            if any(owner["uid"] == uid for owner in secret["metadata"].get("ownerReferences", ())):
                del self.secrets[name]
        for name, pod in list(self.pods.items()):
            if pod["owner"] == uid:
                await self._end_pod(name)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _create_secret(self, request: web.Request) -> web.Response:
        secret = await request.json()
        self.secrets[secret["metadata"]["name"]] = secret
        self.secrets_created.append(secret)
        return web.json_response(secret, status=201)

    async def _list_pods(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"items": [p["object"] for p in self.pods.values() if _selected(request, p["object"])]}
        )

    async def _pod(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        return self._status(404, "not found") if pod is None else web.json_response(pod["object"])

    async def _log(self, request: web.Request) -> web.StreamResponse:
        pod, container = self.pods[request.match_info["name"]], request.query["container"]
        response = web.StreamResponse()
        await response.prepare(request)
        sent = 0
        file = pod["root"] / f"{container}.log"
        while True:
            ended = pod["states"][container].get("terminated")
            data = file.read_bytes() if file.exists() else b""
            if len(data) > sent:
                await response.write(data[sent:])
                sent = len(data)
                if self.break_logs:
                    self.break_logs -= 1
                    assert request.transport is not None
                    request.transport.close()
                    return response
            if ended or not request.query.get("follow"):
                return response
            await asyncio.sleep(0.02)

    # ── pods ────────────────────────────────────────────────────────────────────────────

    def _start(self, job: dict[str, Any]) -> None:
        name = f"{job['metadata']['name']}-{uuid.uuid4().hex[:5]}"
        template = job["spec"]["template"]
        root = self.folder / name
        root.mkdir()
        spec = template["spec"]
        states = {c["name"]: {"waiting": {"reason": "ContainerCreating"}}
                  for c in (*spec.get("initContainers", ()), *spec["containers"])}  # fmt: skip
        labels = {**template["metadata"]["labels"], "job-name": job["metadata"]["name"]}
        statuses = {
            "phase": "Pending",
            "initContainerStatuses": [_container(c["name"], states) for c in spec.get("initContainers", ())],
            "containerStatuses": [_container(c["name"], states) for c in spec["containers"]],
        }
        found = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": statuses}
        self.pods[name] = {"object": found, "root": root, "states": states, "owner": job["metadata"]["uid"]}
        self._tasks[name] = asyncio.create_task(self._run_pod(name, spec))

    async def _run_pod(self, name: str, spec: dict[str, Any]) -> None:
        pod = self.pods[name]
        self._mount(pod["root"], spec)
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            state = pod["states"][container["name"]]
            if self.waiting:
                state["waiting"] = self.waiting
                return
            status = await self._run_container(name, pod, container, state)
            state.clear()
            state["terminated"] = {"exitCode": status, "reason": "Completed" if status == 0 else "Error"}
            if status:
                pod["object"]["status"]["phase"] = "Failed"
                return
        pod["object"]["status"]["phase"] = "Succeeded"

    def _mount(self, root: Path, spec: dict[str, Any]) -> None:
        secret = next((v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v), None)
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            for mount in container.get("volumeMounts", ()):
                place = root / mount["mountPath"].lstrip("/")
                if "subPath" in mount:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(base64.b64decode(self.secrets[secret]["data"][mount["subPath"]]))
                else:
                    place.mkdir(parents=True, exist_ok=True)

    async def _run_container(self, name: str, pod: Any, container: Any, state: dict[str, Any]) -> int:
        root = pod["root"]
        env = {"PATH": os.environ["PATH"]}
        for each in container.get("env", ()):
            reference = each["valueFrom"]["secretKeyRef"]
            env[each["name"]] = base64.b64decode(self.secrets[reference["name"]]["data"][reference["key"]]).decode()
        words = [self._relocated(word, root, container) for word in (*container["command"], *container.get("args", ()))]
        with (root / f"{container['name']}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *words, cwd=root, env=env, stdout=log, stderr=log, start_new_session=True
            )
            self._processes[name] = process
            state.clear()
            state["running"] = {}
            pod["object"]["status"]["phase"] = "Running"
            self.started.set()
            return await process.wait()

    @staticmethod
    def _relocated(word: str, root: Path, container: Any) -> str:
        for old, new in TASK_SCRIPT:
            word = word.replace(old, new.format(root=root))
        for mount in container.get("volumeMounts", ()):
            word = word.replace(mount["mountPath"], f"{root}{mount['mountPath']}")
        return word

    async def _end_pod(self, name: str) -> None:
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        if process is not None:
            await process.wait()
        self.pods.pop(name, None)


def _selected(request: web.Request, item: dict[str, Any]) -> bool:
    key, _, value = request.query.get("labelSelector", "").partition("=")
    return not key or item["metadata"]["labels"].get(key) == value


def _container(name: str, states: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "state": states[name], "ready": False, "restartCount": 0, "image": "", "imageID": ""}
