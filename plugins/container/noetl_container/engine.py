"""Runs a container with the command line of podman or docker, which have the same options.

A container is created, files are copied into it, it is started with its output attached, files are copied out of it,
and it is removed. Its name is the same for all attempts of a visit: an attempt removes what the previous one has left.
It is removed by a label of the call, so that an attempt that has lost its lease does not remove that of the next one.
Containers of workers of this machine that no longer run are removed at the first call of a worker.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from noetl.tool import BadAuth, ToolCall, auth_fields, per_loop
from noetl_container.failures import EngineFailed
from noetl_container.job import BadInput, Container, Output, job_name
from noetl_container.output_files import archive_of, contents, read_archive
from noetl_container.transcript import Transcript, chunks_of

OWNER = "noetl.owner"
CALL = "noetl.call"  # unique
EXECUTION = "noetl.execution"
TASK = "noetl.task_run"
CLEAN_SECONDS = 60.0  # for the removal of a container
# Variables that the engine's own command line reads: they cannot carry values that an --env-file cannot express.
_RESERVED = ("PATH", "HOME", "LD_", "DYLD_", "DOCKER_", "CONTAINER", "XDG_", "TMPDIR", "HTTP", "NO_PROXY", "SSL_")


def installed(name: str) -> bool:
    """Whether the program of an engine is on the path."""
    return shutil.which(name) is not None


class Engine:
    """The command line of podman or docker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._cleaned: asyncio.Future[None] | None = None

    async def run(self, call: ToolCall, wanted: Container) -> Output:
        """Run a container to its end."""
        await self._remove_abandoned()
        mark = uuid.uuid4().hex
        try:
            with tempfile.TemporaryDirectory(prefix="noetl-container-") as folder:
                identity = await self._create(call, wanted, mark, Path(folder))
            if wanted.files:
                archive = archive_of(await contents(wanted.files, call.host), wanted.user)
                await self._ask(["cp", "-", f"{identity}:/"], archive)
            return await self._attached(call, wanted, identity)
        finally:
            removing = asyncio.ensure_future(self._clean_up(call, mark, wanted.grace))
            try:
                await asyncio.shield(removing)
            except asyncio.CancelledError:  # a second cancellation: finish the removal all the same
                await removing
                raise

    # ── steps ───────────────────────────────────────────────────────────────────────────

    async def _create(self, call: ToolCall, wanted: Container, mark: str, folder: Path) -> str:
        environment = folder / "env"
        environment.touch(mode=0o600)
        inherited = _write_environment(environment, wanted.env)
        options = ["create", "--name", job_name(call), "--pull", wanted.pull, "--security-opt", "no-new-privileges"]
        options += ["--env-file", str(environment)]
        labels = {OWNER: _owner(os.getpid()), CALL: mark, EXECUTION: call.execution_id, TASK: call.task_run_id}
        for name, value in labels.items():
            options += ["--label", f"{name}={value}"]
        given = {"--workdir": wanted.workdir, "--user": wanted.user, "--network": wanted.network,
                 "--memory": wanted.memory, "--cpus": wanted.cpu}  # fmt: skip
        for option, setting in given.items():
            if setting is not None:
                options += [option, str(setting)]
        if wanted.memory is not None:
            options += ["--memory-swap", str(wanted.memory)]  # no swap beyond the limit
        if wanted.command:
            options += ["--entrypoint", wanted.command[0]]
        before, after = await self._registry(call, wanted.image, folder)
        options += [*after, "--", wanted.image, *wanted.command[1:], *wanted.args]
        try:
            created = await self._ask([*before, *options], environment=inherited)
        except EngineFailed as problem:
            if "already in use" not in str(problem):
                raise
            await self._remove(job_name(call), 0.0)  # of the previous attempt
            created = await self._ask([*before, *options], environment=inherited)
        return created.decode().split()[-1]

    async def _registry(self, call: ToolCall, image: str, folder: Path) -> tuple[list[str], list[str]]:
        """Options before and after `create` that name the credentials of the registry."""
        if not call.input.get("auth"):
            return [], []
        fields = await auth_fields(call.input["auth"], call.host)
        (folder / "config.json").touch(mode=0o600)
        (folder / "config.json").write_text(registry_config(fields, image))
        if self.name == "podman":
            return [], ["--authfile", str(folder / "config.json")]
        return ["--config", str(folder)], []

    async def _attached(self, call: ToolCall, wanted: Container, identity: str) -> Output:
        """Start it and read its output to the end."""
        streams = [Transcript(call.host, name, wanted.max_output) for name in ("stdout", "stderr")]
        with tempfile.TemporaryDirectory(prefix="noetl-container-") as folder:  # podman's monitor writes files there
            process = await asyncio.create_subprocess_exec(
                self.name, "start", "--attach", identity, cwd=folder,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                pipes = zip(streams, (process.stdout, process.stderr), strict=True)
                await asyncio.gather(*(stream.read(chunks_of(pipe)) for stream, pipe in pipes if pipe is not None))
                await process.wait()
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        state = await self._state(identity)
        if state.get("Status") in ("created", "configured", "initialized") or (
            state.get("Error") and state.get("ExitCode") in (126, 127, 128)
        ):
            raise EngineFailed(str(state.get("Error") or streams[1].text).strip() or "the container did not start")
        status = int(state.get("ExitCode", process.returncode))
        files: dict[str, Any] = {}
        if status in wanted.ok_codes:
            for path in wanted.outputs:
                files |= await self._read(call, wanted, identity, path)
        return Output(
            returncode=status,
            stdout=streams[0].text,
            stderr=streams[1].text,
            files=files,
            truncated=any(stream.truncated for stream in streams),
            oom=bool(state.get("OOMKilled")),
        )

    async def _state(self, identity: str) -> Mapping[str, Any]:
        try:
            state: Mapping[str, Any] = json.loads(await self._ask(["inspect", "--format", "{{json .State}}", identity]))
        except EngineFailed as problem:
            message = f"the container was removed while it ran: {problem}"
            raise EngineFailed(message, "worker.lost" if problem.kind == "not_found" else problem.kind) from None
        if state.get("Running") or state.get("Status") == "running":
            raise EngineFailed("the output of the container ended before the container did", "connection")
        return state

    async def _read(self, call: ToolCall, wanted: Container, identity: str, path: str) -> dict[str, Any]:
        with tempfile.TemporaryFile() as file:
            try:
                await self._ask(["cp", f"{identity}:{path}", "-"], into=file)
            except EngineFailed as problem:
                if problem.kind == "not_found":
                    raise EngineFailed(f"`outputs`: the container has not written {path}", "not_found") from None
                raise
            file.seek(0)
            return await read_archive(file, path, call.host, wanted.inline_bytes)

    # ── removal ─────────────────────────────────────────────────────────────────────────

    async def _clean_up(self, call: ToolCall, mark: str, grace: float) -> None:
        """Remove the container of a call, also one whose creation was interrupted."""
        try:
            for identity in (await self._ask(["ps", "--all", "--quiet", "--filter", f"label={CALL}={mark}"])).split():
                await self._remove(identity.decode(), grace)
        except (EngineFailed, TimeoutError) as problem:
            call.host.log(f"the container {job_name(call)} could not be removed: {problem}", stream="stderr")

    async def _remove(self, identity: str, grace: float) -> None:
        """Stop and remove a container; one that does not exist is no error."""
        try:
            async with asyncio.timeout(CLEAN_SECONDS + grace):
                if grace:
                    with suppress(EngineFailed):
                        await self._ask(["stop", "--time", str(max(1, round(grace))), identity])
                at_once = ["--time", "0"] if self.name == "podman" else []  # docker does not wait
                await self._ask(["rm", "--force", "--volumes", *at_once, identity])
        except EngineFailed as problem:
            if "no such container" not in str(problem).lower() and problem.kind != "not_found":
                raise

    async def _remove_abandoned(self) -> None:
        """Once per worker: remove the containers of workers of this machine that were killed."""
        if self._cleaned is None:
            self._cleaned = asyncio.ensure_future(self._abandoned())
        try:
            await asyncio.shield(self._cleaned)
        except EngineFailed:
            self._cleaned = None  # the engine may be reachable at the next call
            raise

    async def _abandoned(self) -> None:
        found = (
            (await self._ask(["ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={OWNER}"])).decode().split()
        )
        for identity in found:
            try:
                labels = json.loads(await self._ask(["inspect", "--format", "{{json .Config.Labels}}", identity]))
            except EngineFailed as problem:
                if problem.kind == "not_found":
                    continue  # its own worker has removed it meanwhile
                raise
            if _has_ended(labels[OWNER]):
                await self._remove(identity, 0.0)

    # ── the command line ────────────────────────────────────────────────────────────────

    async def _ask(
        self,
        words: Sequence[str],
        given: bytes | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        into: Any = asyncio.subprocess.PIPE,
    ) -> bytes:
        """The output of a command; EngineFailed with its message."""
        try:
            process = await asyncio.create_subprocess_exec(
                self.name, *words,
                stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
                stdout=into, stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **environment} if environment else None,
            )  # fmt: skip
        except FileNotFoundError:
            raise EngineFailed(f"{self.name} is not installed on this worker", "not_found") from None
        except OSError as problem:  # the arguments are too long
            raise EngineFailed(f"{self.name} cannot be started: {problem.strerror}; use `files`", "limit") from None
        try:
            output, problems = await process.communicate(given)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            lines = [line for line in problems.decode(errors="replace").splitlines() if line.strip()]
            message = lines[-1] if lines else f"exit status {process.returncode}"
            raise EngineFailed(f"{self.name}: {message.removeprefix('Error: ')}")
        return output or b""


def engine(name: str) -> Engine:
    """The engine of this worker."""
    return per_loop(("noetl-container", name), lambda: Engine(name))


def registry_config(fields: Mapping[str, Any], image: str) -> str:
    """The credentials of a registry in the format that docker, podman and Kubernetes read."""
    name, password = fields.get("username") or fields.get("user"), fields.get("password") or fields.get("token")
    if not name or not password:
        raise BadAuth("the credential of a registry requires `username` and `password`")
    first, slash, _ = image.partition("/")
    named = first if slash and ("." in first or ":" in first or first == "localhost") else ""
    registry = str(fields.get("registry") or named or "https://index.docker.io/v1/")
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
    return json.dumps({"auths": {registry: {"auth": encoded}}})


def _write_environment(file: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Write an --env-file; returns the values with line breaks, which the engine takes from its own environment."""
    inherited = {}
    with file.open("w") as lines:
        for name, value in variables.items():
            if "\n" in value or "\r" in value:
                if name.upper().startswith(_RESERVED):
                    raise BadInput(f"the variable {name} cannot have a value with line breaks; use `files`")
                inherited[name] = value
                lines.write(f"{name}\n")
            else:
                lines.write(f"{name}={value}\n")
    return inherited


def _owner(pid: int) -> str:
    return f"{platform.node()}/{pid}/{_start_of(pid)}"


def _start_of(pid: int) -> str:
    """When a process started, as far as the system says: another process may have its number later."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _has_ended(owner: str) -> bool:
    """Whether the worker of a container ran on this machine and has ended."""
    node, _, rest = owner.partition("/")
    number = rest.partition("/")[0]
    if node != platform.node() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _owner(int(number)) != owner
