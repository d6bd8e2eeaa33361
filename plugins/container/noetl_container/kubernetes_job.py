"""Runs a container as a Kubernetes Job.

Variables and files are in a Secret that belongs to the Job, and is deleted with it. The name of the Job is the same for
all attempts of a visit: an attempt deletes what the previous one has left. With `outputs` the task is an init
container, and a helper container that starts after it prints the files of its volumes as an archive.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, ApiException, BatchV1Api, Configuration, CoreV1Api

from noetl.tool import BadAuth, Host, ToolCall, auth_fields
from noetl_container.engine import registry_config
from noetl_container.failures import EngineFailed
from noetl_container.job import BadInput, Container, Output, job_name
from noetl_container.output_files import contents, read_archive
from noetl_container.transcript import Transcript

POLL_SECONDS = 0.5
GONE_SECONDS = 60.0  # until the Job of the previous attempt is deleted
KEEP_SECONDS = 600  # that Kubernetes keeps the Job of a worker that was killed, after its end
LABEL = "noetl.io/call"
TASK, HELPER = "task", "outputs"
POLICIES = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}
MAX_SECRET = 1_000_000  # bytes; Kubernetes rejects larger ones
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Reasons for which a container does not start, and never will.
_HOPELESS = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerError", "RunContainerError")
_LOCAL = ("exec", "auth-provider", "tokenFile", "client-key", "client-certificate", "certificate-authority")
_PRINT = """
for path; do [ -e "/$path" ] || { echo "/$path"; exit 3; }; done
tar -cf - -C / -- "$@" | base64
"""


async def run_job(call: ToolCall, wanted: Container) -> Output:
    """Run a container to its end as a Job."""
    _check(wanted)
    try:
        async with _connected(call) as (api, namespace), AsyncExitStack() as stack:
            job = _Job(call, wanted, api, namespace)
            stack.push_async_callback(job.delete)
            await job.create()
            return await job.follow()
    except ApiException as problem:
        raise _explained(problem) from None
    except (OSError, aiohttp.ClientError) as problem:
        raise EngineFailed(f"the Kubernetes API cannot be reached: {problem}", "connection") from None


def _check(wanted: Container) -> None:
    if wanted.network is not None:
        raise BadInput("`network` is not available on Kubernetes: the network policies of the namespace apply")
    if wanted.user is not None and not wanted.user.replace(":", "").isdecimal():
        raise BadInput(f"`user`: Kubernetes requires a number, not {wanted.user!r}")


# ── the cluster ─────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _connected(call: ToolCall) -> AsyncIterator[tuple[ApiClient, str]]:
    settings = Configuration()
    with tempfile.TemporaryDirectory(prefix="noetl-kubernetes-") as folder:
        namespace = await _configure(settings, call, Path(folder))
        async with ApiClient(settings) as api:
            yield api, str(call.input.get("namespace") or namespace or "default")


async def _configure(settings: Configuration, call: ToolCall, folder: Path) -> str | None:
    """Set address and credentials of the cluster; returns its namespace."""
    if call.input.get("cluster"):
        return await _given_cluster(settings, call.input["cluster"], call.host, folder)
    try:
        config.load_incluster_config(client_configuration=settings)
        return _own_namespace()
    except config.ConfigException:
        pass
    try:
        await config.load_kube_config(client_configuration=settings)
    except (config.ConfigException, OSError) as problem:
        raise EngineFailed(f"no Kubernetes cluster is configured for this worker: {problem}", "not_found") from None
    _, active = config.list_kube_config_contexts()
    return active["context"].get("namespace") if active else None


def _own_namespace() -> str | None:
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else None


async def _given_cluster(settings: Configuration, given: Any, host: Host, folder: Path) -> str | None:
    fields = await auth_fields(given, host)
    kubeconfig = fields if "clusters" in fields or "users" in fields else fields.get("kubeconfig")
    if kubeconfig:
        return await _kubeconfig(settings, kubeconfig)
    server = fields.get("server") or fields.get("dsn")
    if not server:
        raise BadAuth("the credential of a cluster requires `server` (https://...) or `kubeconfig`")
    settings.host = str(server).rstrip("/")
    if fields.get("token"):
        settings.api_key = {"BearerToken": f"Bearer {fields['token']}"}
    if fields.get("ca"):
        certificate = folder / "ca.pem"
        certificate.write_text(str(fields["ca"]))
        settings.ssl_ca_cert = str(certificate)
    namespace = fields.get("namespace")
    return str(namespace) if namespace else None


async def _kubeconfig(settings: Configuration, given: Any) -> str | None:
    try:
        loaded = given if isinstance(given, Mapping) else yaml.safe_load(str(given))
        users = [each.get("user") or {} for each in loaded.get("users") or []]
        clusters = [each.get("cluster") or {} for each in loaded.get("clusters") or []]
        local = [name for part in (*users, *clusters) for name in _LOCAL if name in part]
        if local:
            raise BadAuth(f"`kubeconfig`: {local[0]} refers to the worker's machine; use a token or the -data fields")
        await config.load_kube_config_from_dict(dict(loaded), client_configuration=settings)
        contexts = {each["name"]: each["context"] for each in loaded.get("contexts") or []}
        namespace = contexts.get(loaded.get("current-context"), {}).get("namespace")
        return str(namespace) if namespace else None
    except (config.ConfigException, yaml.YAMLError, AttributeError, KeyError, TypeError) as wrong:
        raise BadAuth(f"`kubeconfig` of the credential cannot be read: {wrong}") from None


# ── one Job ─────────────────────────────────────────────────────────────────────────────


class _Job:
    """A Job with its Secret and its pod."""

    def __init__(self, call: ToolCall, wanted: Container, api: ApiClient, namespace: str) -> None:
        self._call, self._wanted, self._namespace = call, wanted, namespace
        self._core, self._batch = CoreV1Api(api), BatchV1Api(api)
        self._name = job_name(call)
        self._mark = uuid.uuid4().hex
        self._uid: str | None = None
        self._files: dict[str, bytes] = {}

    async def create(self) -> None:
        """Create the Job, and then the Secret that it owns; it starts after that."""
        wanted, call = self._wanted, self._call
        self._files = await contents(wanted.files, call.host)
        registry = None
        if call.input.get("auth"):
            registry = registry_config(await auth_fields(call.input["auth"], call.host), wanted.image)
        data = {f"env.{name}": value.encode() for name, value in wanted.env.items()}
        data |= {f"file.{n}": content for n, content in enumerate(self._files.values())}
        if sum(map(len, data.values())) > MAX_SECRET:
            raise EngineFailed("`env` and `files` are larger than 1 MB, which Kubernetes accepts at most", "limit")
        has_secrets = bool(data or registry)
        job = self._manifest(suspend=has_secrets, registry=registry is not None)
        self._uid = (await self._created(job)).metadata.uid
        if not has_secrets:
            return
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self._name, "uid": self._uid}
        secrets = {self._name: ("Opaque", data)}
        if registry is not None:
            secrets[f"{self._name}-pull"] = (
                "kubernetes.io/dockerconfigjson",
                {".dockerconfigjson": registry.encode()},
            )
        for name, (kind, content) in secrets.items():
            await self._core.create_namespaced_secret(
                self._namespace,
                {
                    "metadata": {"name": name, "ownerReferences": [owner]},
                    "type": kind,
                    "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
                },
            )
        await self._batch.patch_namespaced_job(self._name, self._namespace, {"spec": {"suspend": False}})

    async def follow(self) -> Output:
        """Read the output to the end, and the files."""
        wanted = self._wanted
        transcript = Transcript(self._call.host, "stdout", wanted.max_output)
        pod = await self._pod(TASK)
        reading = asyncio.ensure_future(transcript.read(self._log(pod, TASK)))
        try:
            ended = await self._ended(pod, TASK)
            await reading
        finally:
            reading.cancel()
        files: dict[str, Any] = {}
        if wanted.outputs and ended.exit_code in wanted.ok_codes:
            files = await self._outputs(pod)
        return Output(
            returncode=ended.exit_code,
            stdout=transcript.text,
            stderr="",
            files=files,
            truncated=transcript.truncated,
            oom=ended.reason == "OOMKilled",
            reason=ended.message or "",
        )

    async def delete(self) -> None:
        """Delete the Job with its pod and its Secret; a Job of another attempt stays."""
        deleting = asyncio.ensure_future(self._delete(self._uid, round(self._wanted.grace)))
        try:
            await asyncio.shield(deleting)
        except asyncio.CancelledError:
            await deleting
            raise

    async def _created(self, job: dict[str, Any]) -> Any:
        deadline = asyncio.get_running_loop().time() + GONE_SECONDS
        while True:
            try:
                return await self._batch.create_namespaced_job(self._namespace, job)
            except ApiException as problem:
                if problem.status != 409 or asyncio.get_running_loop().time() > deadline:
                    raise
            await self._delete(None, 0)  # of the previous attempt
            await asyncio.sleep(POLL_SECONDS)

    async def _delete(self, uid: str | None, grace: int) -> None:
        options: dict[str, Any] = {"propagationPolicy": "Background", "gracePeriodSeconds": grace}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        elif self._uid is None and grace:
            # The creation was interrupted: only a Job of this call is deleted.
            found = await self._batch.list_namespaced_job(self._namespace, label_selector=f"{LABEL}={self._mark}")
            if not found.items:
                return
        try:
            await self._batch.delete_namespaced_job(self._name, self._namespace, body=options)
        except ApiException as problem:
            if problem.status not in (404, 409):  # it does not exist, or it is the Job of another attempt
                raise

    async def _pod(self, container: str) -> str:
        """The pod's name, once a container of it has started."""
        while True:
            found = await self._core.list_namespaced_pod(self._namespace, label_selector=f"{LABEL}={self._mark}")
            for pod in found.items:
                state = _state(pod, container)
                if state is not None and (state.running or state.terminated):
                    return str(pod.metadata.name)
                self._check_waiting(pod, state)
            await self._check_job()
            await asyncio.sleep(POLL_SECONDS)

    async def _ended(self, name: str, container: str) -> Any:
        """The state of a container that has ended."""
        while True:
            try:
                pod = await self._core.read_namespaced_pod(name, self._namespace)
            except ApiException as problem:
                if problem.status != 404:
                    raise
                raise EngineFailed(f"the pod {name} was deleted while it ran", "worker.lost") from None
            state = _state(pod, container)
            if state is not None and state.terminated:
                return state.terminated
            self._check_waiting(pod, state)
            await asyncio.sleep(POLL_SECONDS)

    def _check_waiting(self, pod: Any, state: Any) -> None:
        waiting = state.waiting if state is not None else None
        if waiting is not None and waiting.reason in _HOPELESS:
            raise EngineFailed(f"the container does not start: {waiting.reason}: {waiting.message or ''}".strip(": "))
        if pod.status.phase == "Failed" and (state is None or state.terminated is None):
            reason = pod.status.reason or "unknown reason"
            kind = "timeout" if reason == "DeadlineExceeded" else "worker.lost"
            raise EngineFailed(f"the pod failed: {reason}: {pod.status.message or ''}".strip(": "), kind)

    async def _check_job(self) -> None:
        """EngineFailed if the Job cannot create its pod."""
        try:
            job = await self._batch.read_namespaced_job(self._name, self._namespace)
        except ApiException as problem:
            if problem.status != 404:
                raise
            raise EngineFailed("the Job was deleted while it ran", "worker.lost") from None
        for condition in (job.status and job.status.conditions) or ():
            if condition.type == "Failed" and condition.status == "True":
                raise EngineFailed(f"the Job failed: {condition.reason}: {condition.message or ''}".strip(": "))

    async def _log(self, pod: str, container: str) -> AsyncIterator[bytes]:
        """The output of a container to its end; a broken connection is continued where it ended."""
        seen = 0
        while True:
            answer = await self._core.read_namespaced_pod_log(
                pod, self._namespace, container=container, follow=True, _preload_content=False
            )
            skip = seen
            try:
                async for chunk in answer.content.iter_any():
                    new, skip = chunk[skip:], max(0, skip - len(chunk))
                    seen += len(new)
                    if new:
                        yield new
            except (OSError, aiohttp.ClientError):
                pass  # read again
            finally:
                answer.release()
            found = _state(await self._core.read_namespaced_pod(pod, self._namespace), container)
            if found is not None and found.terminated and not skip:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _outputs(self, pod: str) -> dict[str, Any]:
        ended = await self._ended(pod, HELPER)
        log = await self._core.read_namespaced_pod_log(pod, self._namespace, container=HELPER)
        if ended.exit_code == 3:
            raise EngineFailed(f"`outputs`: the container has not written {log.strip()}", "not_found")
        if ended.exit_code:
            raise EngineFailed(f"the outputs cannot be read: {log.strip()[-300:]}")
        try:
            archive = io.BytesIO(base64.b64decode(log, validate=False))
            return await read_archive(archive, "/", self._call.host, self._wanted.inline_bytes)
        except (binascii.Error, EOFError, ValueError) as damaged:
            raise EngineFailed(f"the outputs are larger than the logs of this cluster: {damaged}", "limit") from None

    # ── manifest ────────────────────────────────────────────────────────────────────────

    def _manifest(self, *, suspend: bool, registry: bool) -> dict[str, Any]:
        wanted, given = self._wanted, self._call.input
        labels = {
            LABEL: self._mark,
            "noetl.io/execution": self._call.execution_id,
            "app.kubernetes.io/managed-by": "noetl",
        }
        folders = sorted({path.rpartition("/")[0] or path for path in wanted.outputs})
        volumes: list[dict[str, Any]] = [{"name": f"out-{n}", "emptyDir": {}} for n in range(len(folders))]
        mounts = [{"name": f"out-{n}", "mountPath": path} for n, path in enumerate(folders)]
        task = self._task(mounts)
        pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [task], "volumes": volumes}
        if self._files:
            volumes.append({"name": "files", "secret": {"secretName": self._name}})
        if folders:
            paths = [path.lstrip("/") for path in wanted.outputs]
            helper = {"name": HELPER, "image": wanted.helper_image, "command": ["sh", "-c", _PRINT, "noetl", *paths],
                      "volumeMounts": mounts}  # fmt: skip
            pod |= {"initContainers": [task], "containers": [helper]}
        if given.get("service_account"):
            pod["serviceAccountName"] = str(given["service_account"])
        else:
            pod["automountServiceAccountToken"] = False
        if registry:
            pod["imagePullSecrets"] = [{"name": f"{self._name}-pull"}]
        spec: dict[str, Any] = {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "suspend": suspend,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        if wanted.timeout is not None:
            spec["activeDeadlineSeconds"] = max(1, round(wanted.timeout + 0.5))
        return {"metadata": {"name": self._name, "labels": labels,
                             "annotations": {"noetl.io/task-run": self._call.task_run_id}}, "spec": spec}  # fmt: skip

    def _task(self, mounts: list[dict[str, str]]) -> dict[str, Any]:
        wanted = self._wanted
        files = [{"name": "files", "mountPath": path, "subPath": f"file.{n}"} for n, path in enumerate(self._files)]
        security: dict[str, Any] = {"allowPrivilegeEscalation": False}
        if wanted.user is not None:
            user, _, group = wanted.user.partition(":")
            security |= {"runAsUser": int(user), **({"runAsGroup": int(group)} if group else {})}
        task: dict[str, Any] = {
            "name": TASK,
            "image": wanted.image,
            "imagePullPolicy": POLICIES[wanted.pull],
            "args": wanted.args,
            "env": [
                {"name": name, "valueFrom": {"secretKeyRef": {"name": self._name, "key": f"env.{name}"}}}
                for name in wanted.env
            ],
            "volumeMounts": [*mounts, *files],
            "securityContext": security,
            "resources": self._resources(),
        }
        if wanted.command:
            task["command"] = wanted.command
        if wanted.workdir:
            task["workingDir"] = wanted.workdir
        return task

    def _resources(self) -> dict[str, Any]:
        wanted = self._wanted
        limits: dict[str, str] = {}
        if wanted.memory is not None:
            limits["memory"] = str(wanted.memory)
        if wanted.cpu is not None:
            limits["cpu"] = f"{max(1, round(wanted.cpu * 1000))}m"
        found: dict[str, Any] = {"limits": limits} if limits else {}
        given = self._call.input.get("resources")
        requests = given.get("requests") if isinstance(given, Mapping) else None
        if isinstance(requests, Mapping):
            found["requests"] = {str(name): str(value) for name, value in requests.items()}
        return found


def _state(pod: Any, container: str) -> Any:
    """The state of a container of a pod; None before it is known."""
    status = pod.status
    for each in [*(status.init_container_statuses or ()), *(status.container_statuses or ())]:
        if each.name == container:
            return each.state
    return None


def _explained(problem: ApiException) -> EngineFailed:
    message = problem.reason or ""
    try:
        message = json.loads(problem.body or "")["message"]
    except (ValueError, KeyError, TypeError):
        pass
    kinds = {401: "auth", 403: "auth", 404: "not_found", 422: "client_error", 400: "client_error", 429: "rate_limit"}
    status = int(problem.status or 0)
    return EngineFailed(f"Kubernetes: {status} {message}", kinds.get(status, "server_error"))
