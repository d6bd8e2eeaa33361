"""The life of the process: read a request, make its surroundings, run it, answer, put things back.

Every call gets a module of its own for its globals, and what a call commonly leaves behind (working
folder, environment, import path, modules from beside the playbook) is put back. A call that leaves a
thread or a child process behind asks the parent to retire this process.
"""

from __future__ import annotations

import _thread
import marshal
import os
import sys
from typing import Any

from noetl.tools.python.child.code import FILE, execute
from noetl.tools.python.child.data import Refused, encoded

NAME = "noetl_task"  # module of the author's code; not __main__, so that `if __name__ == ...` does not run
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
MESSAGE_CHARS = 1_000_000  # the parent masks before it cuts to what people read


def words_of(failure: BaseException) -> str:
    """An exception's message."""
    try:
        return str(failure)
    except Exception as second:  # noqa: BLE001 - the author's own __str__ may fail
        return f"(its message cannot be shown: {type(second).__name__})"


def described(failure: BaseException) -> dict[str, Any]:
    """An exception in the author's terms: type, message, and the frames of the author's own code."""
    message = words_of(failure)
    notes = getattr(failure, "__notes__", None)
    if notes:
        message = " ".join([message, *map(str, notes)])
    frames: list[list[Any]] = []
    innermost = None
    trace = failure.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == FILE:
            frames.append([trace.tb_lineno, "" if code.co_name in ("<module>", "__body__") else code.co_name])
        elif not code.co_filename.startswith(OURS):
            innermost = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    if isinstance(failure, SyntaxError) and failure.filename == FILE:
        frames.append([failure.lineno, ""])
        message = failure.msg
    cause = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)
    return {
        "type": type(failure).__qualname__,
        "message": message[:MESSAGE_CHARS],
        "frames": frames[-50:],
        "library": innermost,
        "cause": None if cause is None else f"{type(cause).__qualname__}: {words_of(cause)[:MESSAGE_CHARS]}",
        "kind": "limit" if isinstance(failure, MemoryError) else "python",
    }


class Surroundings:
    """What a call may change around it and the next call must not see."""

    def __init__(self) -> None:
        self.folder = os.getcwd()
        self.environment = dict(os.environ)
        self.path = list(sys.path)
        self.streams = sys.stdout, sys.stderr
        self.limits: dict[str, Any] = {}
        self.recursion = sys.getrecursionlimit()
        self.threads = _thread._count()
        self.modules = 0

    def enter(self, request: dict[str, Any]) -> None:
        """Make the surroundings of one call."""
        self.modules = len(sys.modules)
        folder = request.get("folder")
        if folder:
            if folder != self.folder:
                os.chdir(folder)
                self.folder = folder
            sys.path.insert(0, folder)
        environment = request.get("env")
        if environment:
            os.environ.update(environment)
        limits = request.get("limits") or {}
        if limits != self.limits:
            self.set_limits(limits)
            self.limits = limits

    def set_limits(self, limits: dict[str, Any]) -> None:
        """Soft limits of this process; the hard ones stay, so that the next call can have others."""
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime) + 1
        wanted = {
            # On Linux RLIMIT_DATA counts what is really allocated; RLIMIT_AS would count reservations.
            resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS: limits.get("memory"),
            resource.RLIMIT_CPU: limits["cpu"] + spent if limits.get("cpu") else None,
            resource.RLIMIT_NOFILE: limits.get("files"),
            resource.RLIMIT_FSIZE: limits.get("file_size"),
            resource.RLIMIT_NPROC: limits.get("processes"),
            resource.RLIMIT_CORE: 0,
        }
        for limit, soft in wanted.items():
            hard = resource.getrlimit(limit)[1]
            if soft is None or (hard != resource.RLIM_INFINITY and soft > hard):
                soft = hard
            resource.setrlimit(limit, (soft, hard))
        if limits.get("cpu"):
            self.limits = {}  # counted from here: set it again for the next call

    def leave(self, request: dict[str, Any]) -> bool:
        """Put things back; False when the process had better not be used again."""
        sys.modules.pop(NAME, None)
        folder = request.get("folder")
        if sys.path != self.path:
            sys.path[:] = self.path
        if folder and len(sys.modules) != self.modules:
            beside = [name for name, module in list(sys.modules.items()) if stands_in(module, folder)]
            for name in beside:  # another playbook may have a module of this name, and files change
                del sys.modules[name]
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        if (sys.stdout, sys.stderr) != self.streams:
            sys.stdout, sys.stderr = self.streams
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
        try:
            if os.getcwd() != self.folder:
                os.chdir(self.folder)
        except OSError:
            return False
        return not self.something_is_running()

    def something_is_running(self) -> bool:
        """Whether a thread or a child process of the call is still there."""
        if _thread._count() > self.threads:
            return True
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        return True


def stands_in(module: Any, folder: str) -> bool:
    """Whether a module (or a namespace package, which has no file) was imported from this folder."""
    places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
    return any(isinstance(place, str) and place.startswith(folder + os.sep) for place in places)


def answer(request: dict[str, Any], surroundings: Surroundings) -> tuple[bytes, bytes]:
    """Tag and body: `R` a result as JSON, `E` an error as JSON; in lower case: retire this process."""
    module = type(sys)(NAME)
    names = module.__dict__
    process = os.getpid()
    try:
        surroundings.enter(request)
        sys.modules[NAME] = module
        body = encoded(execute(request, names))
        most = request.get("most_bytes") or 0
        if 0 < most < len(body):
            raise Refused(
                f"the result is {len(body):,} bytes of JSON, more than spec.max_output_bytes ({most:,})", "limit"
            )
        tag = b"R"
    except Refused as refused:
        error: dict[str, Any] = {"type": None, "message": str(refused), "frames": [], "kind": refused.kind}
        if isinstance(refused.__cause__, SystemExit):
            error.update(type="SystemExit", frames=described(refused.__cause__)["frames"])
        tag, body = b"E", encoded(error)
    except BaseException as failure:  # noqa: BLE001 - whatever the author's code raises is the answer
        surroundings.limits = {}
        tag, body = b"E", encoded(described(failure))
    if os.getpid() != process:
        os._exit(0)  # a copy made by os.fork() in the author's code: it has no line to the parent
    reusable = surroundings.leave(request)
    names.clear()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            reusable = False  # the code closed it
    return (tag if reusable else tag.lower()), body


def serve(line: int) -> None:
    """Answer requests until the parent closes the line."""
    surroundings = Surroundings()
    while True:
        header = read_exactly(line, 8)
        if header is None:
            return
        body = read_exactly(line, int.from_bytes(header, "little"))
        if body is None:
            return
        tag, reply = answer(marshal.loads(body), surroundings)
        write_all(line, (len(reply) + 1).to_bytes(8, "little") + tag + reply)


def read_exactly(line: int, count: int) -> bytes | None:
    """So many bytes, or None at the end of the line."""
    data = os.read(line, min(count, 1 << 20))
    if len(data) == count:
        return data
    pieces = bytearray(data)
    while data and len(pieces) < count:
        data = os.read(line, min(count - len(pieces), 1 << 20))
        pieces += data
    return bytes(pieces) if len(pieces) == count else None


def write_all(line: int, data: bytes) -> None:
    """All of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(line, view) :]


def die_with(parent: int) -> None:
    """End when the parent ends, however it ends."""
    if sys.platform == "linux":
        try:
            import _ctypes

            prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
            _ctypes.call_function(prctl, (1, 9))  # PR_SET_PDEATHSIG, SIGKILL
        except (ImportError, AttributeError, OSError):
            watch(parent)
    else:
        watch(parent)
    if parent and os.getppid() != parent:
        os._exit(0)


def watch(parent: int) -> None:
    """Where the kernel cannot tell us: look every second."""
    import time

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    _thread.start_new_thread(look, ())


def main(line: int, parent: int) -> None:
    """Set up and serve."""
    die_with(parent)
    os.set_inheritable(line, False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.argv = [NAME]
    try:
        serve(line)
    except KeyboardInterrupt:
        pass
    os._exit(0)
