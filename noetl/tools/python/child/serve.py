"""Main loop of the child process: reads requests, sets up the process state, runs the code, replies.

A message of the parent contains one or more calls. The first one starts at once. Before each other call this process
takes one byte from the socket of tokens; where none is left, the parent has taken the remaining calls back. Each call
is replied to before the next one starts, so the parent knows which call is running.

Every call gets its own module for its globals. The state that calls commonly change (working directory,
environment, import path, modules of the playbook's folder) is restored after each call. After a call that leaves a
thread or a child process running, the reply asks the parent to retire this process.
"""

from __future__ import annotations

import _thread
import marshal
import os
import sys
from _contextvars import copy_context
from _socket import MSG_DONTWAIT, socket
from collections.abc import Iterator
from operator import is_
from time import perf_counter, sleep
from typing import Any

from noetl.tools.python.child.code import FILE, execute
from noetl.tools.python.child.data import TaskError, encode_result
from noetl.tools.python.child.saved_state import PARTS, Restore, restore_all

NAME = "noetl_task"  # module of the author's code; not __main__, so that `if __name__ == ...` does not run
MARK = "NOETL_TASK_RUN"  # by which the worker recognizes processes that the code starts (`runtime.descendants`)
CHILD_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
READ_BYTES = 64 * 1024
MESSAGE_CHARS = 1_000_000  # the parent masks the message before it truncates it further


def message_of(failure: BaseException) -> str:
    """An exception's message."""
    try:
        return str(failure).encode(errors="backslashreplace").decode()  # a reply is valid Unicode
    except Exception as second:  # noqa: BLE001 - the author's own __str__ may fail
        return f"(message not available: {type(second).__name__})"


def describe(failure: BaseException) -> dict[str, Any]:
    """An exception as data: type, message, and the frames of the author's code."""
    message = message_of(failure)
    notes = getattr(failure, "__notes__", None)
    if notes:
        message = " ".join([message, *(str(note).encode(errors="backslashreplace").decode() for note in notes)])
    frames: list[list[Any]] = []
    innermost = None
    trace = failure.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == FILE:
            frames.append([trace.tb_lineno, "" if code.co_name in ("<module>", "__body__") else code.co_name])
        elif not code.co_filename.startswith(CHILD_FOLDER):
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
        "cause": None if cause is None else f"{type(cause).__qualname__}: {message_of(cause)[:MESSAGE_CHARS]}",
        "kind": "limit" if isinstance(failure, MemoryError) else "python",
    }


class ProcessState:
    """Process-wide state that a call may change and the next call must not see."""

    def __init__(self) -> None:
        self.folder = os.getcwd()
        self.environment = dict(os.environ)
        self.encoded_environment = dict(os.environ._data)  # type: ignore[attr-defined]
        self.watched = [vars(sys.modules[name]) for name in _WATCHED if name in sys.modules]
        self.values = [list(module.values()) for module in self.watched]
        self.hooks = interpreter_hooks()
        self.path = list(sys.path)
        self.argv = list(sys.argv)
        self.streams = sys.stdout, sys.stderr
        self.limits: dict[str, Any] = {}
        self.recursion = sys.getrecursionlimit()
        self.threads = _thread._count()
        self.modules = 0

    def enter(self, request: dict[str, Any]) -> None:
        """Set up the state for one call."""
        self.modules = len(sys.modules)
        folder = request.get("folder")
        if folder:
            if folder != self.folder:
                os.chdir(folder)
                self.folder = folder
            sys.path.insert(0, folder)
        mark = request.get("mark")
        if mark:
            os.environ[MARK] = mark
        environment = request.get("env")
        if environment:
            os.environ.update(environment)
        limits = request.get("limits") or {}
        if limits != self.limits:
            self.set_limits(limits)
            self.limits = limits

    def set_limits(self, limits: dict[str, Any]) -> None:
        """Set the soft limits of this process; hard limits are unchanged, so that the next call can set others."""
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        used_s = int(used.ru_utime + used.ru_stime) + 1
        wanted = {
            # On Linux RLIMIT_DATA counts allocated memory; RLIMIT_AS would also count reservations.
            resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS: limits.get("memory"),
            resource.RLIMIT_CPU: limits["cpu"] + used_s if limits.get("cpu") else None,
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
            self.limits = {}  # relative to the CPU time used so far, so it is set again for the next call

    def restore(self, request: dict[str, Any]) -> bool:
        """Restore the state; False if the process should not be reused."""
        sys.modules.pop(NAME, None)
        folder = request.get("folder")
        if sys.path != self.path:
            sys.path[:] = self.path
        if folder and len(sys.modules) != self.modules:
            imported = [name for name, module in list(sys.modules.items()) if is_from(module, folder)]
            for name in imported:  # another playbook may have a module of this name, and files change
                del sys.modules[name]
        os.environ.pop(MARK, None)
        if getattr(os.environ, "_data", None) != self.encoded_environment:  # comparing decoded text takes 10 times
            os.environ.clear()
            os.environ.update(self.environment)
        if sys.argv != self.argv:
            sys.argv[:] = self.argv
        if (sys.stdout, sys.stderr) != self.streams:
            sys.stdout, sys.stderr = self.streams
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
        try:
            if os.getcwd() != self.folder:
                os.chdir(self.folder)
        except OSError:
            return False
        return not self.has_leftovers() and not self.is_patched()

    def is_patched(self) -> bool:
        """Whether the call has changed the interpreter for the calls after it: patched modules, hooks, tracing."""
        return interpreter_hooks() != self.hooks or not all(map(same_objects, self.watched, self.values))

    def has_leftovers(self) -> bool:
        """Whether a thread or a child process of the call is still running."""
        if _thread._count() > self.threads:
            return True
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        return True


_WATCHED = (
    *("builtins", "os", "json", "marshal", "io", "time", "_thread", __name__),
    *("noetl.tools.python.child.code", "noetl.tools.python.child.data"),
)


def interpreter_hooks() -> list[Any]:
    """The hooks of the interpreter, by identity, and its switch interval."""
    hooks = (*sys.meta_path, *sys.path_hooks, sys.excepthook, sys.displayhook, sys.gettrace(), sys.getprofile())
    return [*map(id, hooks), sys.getswitchinterval()]


def same_objects(names: dict[str, Any], values: list[Any]) -> bool:
    """Whether a namespace has these objects, in this order."""
    return len(names) == len(values) and all(map(is_, names.values(), values))


def is_from(module: Any, folder: str) -> bool:
    """Whether a module (or a namespace package, which has no file) was imported from this folder."""
    paths = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
    return any(isinstance(path, str) and path.startswith(folder + os.sep) for path in paths)


def handle(request: dict[str, Any], state: ProcessState) -> tuple[bytes, bytes]:
    """Tag and body of the reply: `R` a result, `E` an error, both JSON; in lower case: retire this process."""
    module = type(sys)(NAME)
    names = module.__dict__
    process = os.getpid()
    saved: list[Restore] = []
    try:
        saved += [PARTS[part]() for part in request.get("restore") or ()]
        state.enter(request)
        sys.modules[NAME] = module
        body = encode_result(copy_context().run(execute, request, names))
        max_bytes = request.get("max_bytes") or 0
        if 0 < max_bytes < len(body):
            raise TaskError(
                f"the result is {len(body):,} bytes of JSON, more than spec.max_output_bytes ({max_bytes:,})", "limit"
            )
        tag = b"R"
    except TaskError as failure:
        error: dict[str, Any] = {"type": None, "message": str(failure), "frames": [], "kind": failure.kind}
        if isinstance(failure.__cause__, SystemExit):
            error.update(type="SystemExit", frames=describe(failure.__cause__)["frames"])
        tag, body = b"E", encode_result(error)
    except BaseException as failure:  # noqa: BLE001 - every exception of the author's code is a reply
        state.limits = {}
        tag, body = b"E", encode_result(describe(failure))
    if os.getpid() != process:
        os._exit(0)  # a copy created by os.fork() in the author's code: it must not reply
    reusable = state.restore(request) and restore_all(saved) and not request.get("retire")
    names.clear()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            reusable = False  # the code closed the stream
    return (tag if reusable else tag.lower()), body


def serve(fd: int, tokens: socket) -> None:
    """Handle requests until the parent closes the socket."""
    state = ProcessState()
    unread = create_output_check()
    messages = 0
    while (message := read_message(fd)) is not None:
        messages += 1
        for number, body in enumerate(calls_of(message)):
            if number and not take_token(tokens):
                write_all(fd, (6).to_bytes(8, "little") + b"T-" + messages.to_bytes(4, "little"))
                break
            began = perf_counter()
            tag, reply = handle(marshal.loads(body), state)
            micros = min(int((perf_counter() - began) * 1e6), 0xFFFFFFFF)
            has_output = unread()
            head = (len(reply) + 6).to_bytes(8, "little") + tag + (b"+" if has_output else b"-")
            write_all(fd, head + micros.to_bytes(4, "little") + reply)
            if tag.islower():
                read_message(fd)  # never used again: wait for the end
                return
            while has_output:  # the lines that the next call prints must not follow unread ones
                sleep(0.0002)
                has_output = unread()


def read_message(fd: int) -> memoryview | None:
    """The next message, in one read if it is small; None if the socket was closed. The parent sends one at a time."""
    data = os.read(fd, READ_BYTES)
    if len(data) >= 8 and len(data) == 8 + int.from_bytes(data[:8], "little"):
        return memoryview(data)[8:]
    buffer = bytearray(data)
    while data and (len(buffer) < 8 or len(buffer) < 8 + int.from_bytes(buffer[:8], "little")):
        data = os.read(fd, 1 << 20)
        buffer += data
    return memoryview(buffer)[8:] if data else None


def calls_of(message: memoryview) -> Iterator[memoryview]:
    """The calls of a message, each preceded by its size."""
    start = 0
    while start < len(message):
        end = start + 8 + int.from_bytes(message[start : start + 8], "little")
        yield message[start + 8 : end]
        start = end


def take_token(tokens: socket) -> bool:
    """Whether the next call may start."""
    try:
        return bool(tokens.recv(1, MSG_DONTWAIT))
    except OSError:  # none is left, or the code has closed the socket
        return False


def create_output_check() -> Any:
    """A function that tells whether the parent has not yet read all that was printed."""
    if sys.platform != "linux":
        return bool  # unknown: the parent sends single calls there, and reads the output of each

    from fcntl import ioctl
    from termios import FIONREAD

    count = bytearray(4)

    def unread() -> bool:
        for fd in (1, 2):
            try:
                ioctl(fd, FIONREAD, count, True)
            except OSError:
                continue  # the code closed it
            if any(count):
                return True
        return False

    return unread


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def exit_with_parent(parent: int) -> None:
    """Make this process exit when its parent exits, even if the parent is killed."""
    if sys.platform == "linux":
        try:
            import _ctypes

            prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
            _ctypes.call_function(prctl, (1, 9))  # PR_SET_PDEATHSIG, SIGKILL
            _ctypes.call_function(prctl, (36, 1))  # PR_SET_CHILD_SUBREAPER: processes of the code stay its descendants
        except (ImportError, AttributeError, OSError):
            poll_parent(parent)
    else:
        poll_parent(parent)
    if parent and os.getppid() != parent:
        os._exit(0)


def poll_parent(parent: int) -> None:
    """Check once a second whether the parent is alive, where the kernel cannot signal its end."""
    import time

    def poll() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    _thread.start_new_thread(poll, ())


def main(fd: int, tokens: int, parent: int) -> None:
    """Set up the process and serve requests."""
    exit_with_parent(parent)
    for each in (fd, tokens):
        os.set_inheritable(each, False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.argv = [NAME]
    try:
        serve(fd, socket(fileno=tokens))
    except KeyboardInterrupt:
        pass
    os._exit(0)
