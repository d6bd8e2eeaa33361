"""Whether code changes the interpreter for calls after it, judged by its text.

A warm process runs the code of many calls. What is cheap to compare is compared after each call (`child.serve`); this
module finds the rest: attributes of imported modules that are assigned, lists and mappings of modules that are changed,
modules that are passed as values (so that it is not known what is done with them), and functions of the standard
library that change the process. What some of these functions change is saved before the call and restored after it
(`child.saved_state`); after other such code the process is not used again. Code that hides what it does is not
recognized; it shares its process only with calls of the same playbook.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

# Assigned by many programs; the process restores them after a call.
_RESTORED = ("os.environ", "sys.path", "sys.stdout", "sys.stderr", "sys.argv")
_NAMES = frozenset({"exec", "eval", "__import__", "__builtins__", "breakpoint"})
_ATTRIBUTES = frozenset({
    "__dict__", "__code__", "__defaults__", "__kwdefaults__", "__globals__", "__builtins__", "__subclasses__",
    "__mro__", "__bases__", "f_globals", "f_builtins", "f_locals", "reconfigure",
})  # fmt: skip
# Methods that change the list, mapping or object that they belong to.
_CHANGING_METHODS = frozenset({
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse", "update", "setdefault", "add",
    "discard", "appendleft", "extendleft", "popleft", "rotate", "__setitem__", "__delitem__", "__setattr__",
    "__delattr__", "__setstate__", "__iadd__", "__ior__",
})  # fmt: skip
# Functions of the standard library with such names change settings of their module.
_SETTING = re.compile(r"(?:un)?register\w*|install_\w+|set_\w+|setfirstweekday|enable_\w+|disable_\w+|reset_\w+")
# Builtins that do not change the module which they are given.
_HARMLESS = frozenset({"getattr", "hasattr", "dir", "print", "repr", "str", "type", "vars", "id", "isinstance", "bool"})
# Modules all of whose functions change the process.
_MODULES = frozenset({
    "signal", "atexit", "ctypes", "_ctypes", "cffi", "faulthandler", "tracemalloc", "_thread", "copyreg", "imp",
    "site", "fcntl", "termios", "pty", "multiprocessing", "runpy",
    "threading.settrace", "threading.setprofile", "threading.stack_size", "threading.excepthook",
})  # fmt: skip
_FUNCTIONS = {
    "os": "nice setpriority sched_setaffinity sched_setscheduler dup dup2 open pipe putenv unsetenv setuid "
    "setgid seteuid setegid setreuid setregid setresuid setresgid setgroups initgroups chroot setsid setpgid fork "
    "forkpty register_at_fork closerange close set_inheritable set_blocking fchdir add_dll_directory",
    "sys": "modules meta_path path_hooks path_importer_cache settrace setprofile setswitchinterval stdin "
    "set_int_max_str_digits addaudithook excepthook unraisablehook breakpointhook displayhook setdlopenflags "
    "set_asyncgen_hooks set_coroutine_origin_tracking_depth activate_stack_trampoline monitoring dont_write_bytecode",
    "builtins": "exec eval __import__ setattr delattr",
    "gc": "set_debug freeze callbacks get_objects get_referrers",
    "importlib": "import_module reload invalidate_caches _bootstrap",
    "resource": "setrlimit prlimit",
    "codecs": "register register_error unregister",
    "mimetypes": "add_type init",
    "zoneinfo": "reset_tzpath",
    "time": "tzset",
    "decimal": "DefaultContext",
    "warnings": "showwarning",
    "logging": "setLoggerClass setLogRecordFactory config",
    "asyncio": "set_event_loop set_event_loop_policy set_child_watcher",
    "urllib.request": "install_opener",
    "linecache": "cache clearcache checkcache",
    "re": "_cache purge",
    "threading": "settrace setprofile stack_size excepthook _register_atexit",
    "tempfile": "tempdir",
}
_PATHS = frozenset(f"{module}.{name}" for module, names in _FUNCTIONS.items() for name in names.split())
# Functions whose effect is restored, by the part of `child.saved_state` that does it.
_RESTORABLE = {
    f"{module}.{name}": part
    for part, module, names in (
        ("random", "random", "seed setstate"),
        ("decimal", "decimal", "getcontext setcontext"),
        ("locale", "locale", "setlocale"),
        ("socket", "socket", "setdefaulttimeout"),
        ("csv", "csv", "register_dialect unregister_dialect field_size_limit"),
        ("umask", "os", "umask"),
        ("gc", "gc", "disable enable set_threshold"),
        ("warnings", "warnings", "simplefilter filterwarnings resetwarnings"),
        ("logging", "logging", "basicConfig disable addLevelName captureWarnings"),
    )
    for name in names.split()
}
# Methods of loggers and handlers: restored if the object is certainly one of the module `logging`.
_LOGGING_METHODS = frozenset({"addHandler", "removeHandler", "addFilter", "removeFilter", "setLevel"})


class Changes(NamedTuple):
    """What code changes beside its own names."""

    lasting: bool  # something that is not restored
    restored: tuple[str, ...]  # parts of `child.saved_state`


def changes_interpreter(code: str, libraries: tuple[tuple[str, str], ...] = ()) -> bool:
    """Whether this code changes more than its own names; `libraries` are names and the modules they are bound to."""
    return any(interpreter_changes(code, libraries))


@lru_cache(1024)
def interpreter_changes(code: str, libraries: tuple[tuple[str, str], ...] = ()) -> Changes:
    """What this code changes; `libraries` are names and the modules they are bound to."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Changes(False, ())  # it does not run
    found = _Names()
    found.paths = {"json": "json", **dict(libraries)}
    found.bindings = Counter(
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    )
    found.visit(tree)
    lasting = found.changes or found.passes_module(tree)
    for node in ast.walk(tree):
        lasting = found.is_change(node) or lasting  # all nodes: each may add a part
    return Changes(lasting, tuple(sorted(found.restored)))


class _Names(ast.NodeVisitor):
    """The names of code that stand for modules, or for parts of modules."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.modules: set[str] = set()  # names that are certainly modules
        self.bindings: Counter[str] = Counter()  # how often a name is bound, without imports
        self.changes = False
        self.restored: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            name = each.asname or each.name.partition(".")[0]
            self.modules.add(name)
            self._bind(name, each.name if each.asname else "", each.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            path = f"{node.module}.{each.name}"
            self._bind(each.asname or each.name, path, path)

    def visit_Assign(self, node: ast.Assign) -> None:
        path = self.path_of(node.value)
        for target in node.targets:
            if path is None or not isinstance(target, ast.Name):
                continue
            if not path.endswith(")") or self.bindings[target.id] == 1:
                self.paths[target.id] = path  # another name for a module, or a logger
                if isinstance(node.value, ast.Name) and node.value.id in self.modules:
                    self.modules.add(target.id)

    def _bind(self, name: str, path: str, imported: str) -> None:
        self.paths[name] = path or name
        top = imported.partition(".")[0]
        module, _, part = imported.rpartition(".")
        if part == "*" and (module in _FUNCTIONS or any(each.startswith(f"{module}.") for each in _RESTORABLE)):
            self.changes = True
        if top in _MODULES or imported in _PATHS or imported in _MODULES:
            self.changes = True
        if imported in _RESTORABLE:
            self.restored.add(_RESTORABLE[imported])

    def path_of(self, node: ast.AST) -> str | None:
        """The path of an expression that stands for a part of a module: `json.JSONEncoder`."""
        if isinstance(node, ast.Name):
            return self.paths.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.path_of(node.value)
            return None if base is None else f"{base}.{node.attr}"
        if isinstance(node, ast.Subscript):
            return self.path_of(node.value)
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Name) and node.args and node.func.id in ("getattr", "vars", "type"):
            return self.path_of(node.args[0])
        called = self.path_of(node.func)
        return f"{called}()" if called is not None and called.startswith("logging.") else None

    def passes_module(self, tree: ast.AST) -> bool:
        """Whether a module is used as a value, other than in `module.name`: what is done with it is not known."""
        harmless: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute | ast.Assign | ast.Expr):  # `j = json`: another name of it
                harmless.add(id(node.value))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _HARMLESS:
                harmless.update(map(id, node.args))
        return any(
            isinstance(node, ast.Name) and node.id in self.modules and id(node) not in harmless
            for node in ast.walk(tree)
            if not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        )

    def is_change(self, node: ast.AST) -> bool:
        """Whether a part of the code changes something outside of its own names."""
        if isinstance(node, ast.Name):
            return node.id in _NAMES
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            return "." in (self.paths.get(node.target.id) or "")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._is_changing_method(node.func, node.args)
        if isinstance(node, ast.Attribute | ast.Subscript):
            return self._is_changed_part(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            return self._is_changing_call(node.func.id, node.args)
        return False

    def _is_changed_part(self, node: ast.Attribute | ast.Subscript) -> bool:
        path = self.path_of(node)
        is_assigned = isinstance(node.ctx, ast.Store | ast.Del)
        if isinstance(node, ast.Attribute) and not is_assigned and self._is_restored(node, path):
            return False
        if isinstance(node, ast.Attribute) and (node.attr in _ATTRIBUTES or path in _PATHS):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _LOGGING_METHODS:
            return True
        if isinstance(node, ast.Attribute) and path is not None and node.attr == "register":
            return True
        if is_assigned and path is not None and path.startswith("logging.getLogger()"):
            self.restored.add("logging")
            return False
        return is_assigned and path is not None and not path.startswith(_RESTORED)

    def _is_changing_method(self, method: ast.Attribute, arguments: list[ast.expr]) -> bool:
        """Whether a method changes a list, a mapping or an object of a module, or a function its settings."""
        owner = self.path_of(method.value)
        if owner is None or f"{owner}.{method.attr}" in _RESTORABLE:
            owner = None
        elif _SETTING.fullmatch(method.attr) and owner.partition(".")[0] in sys.stdlib_module_names:
            return True
        if method.attr not in _CHANGING_METHODS:
            return False
        is_part = owner is not None and "." in owner and not owner.startswith((*_RESTORED, "logging."))
        return is_part or (method.attr.startswith("__") and any(self.path_of(each) is not None for each in arguments))

    def _is_restored(self, node: ast.Attribute, path: str | None) -> bool:
        part = _RESTORABLE.get(path or "")
        if node.attr in _LOGGING_METHODS and (path or "").startswith("logging."):
            part = "logging"
        if part is not None:
            self.restored.add(part)
        return part is not None

    def _is_changing_call(self, name: str, arguments: list[ast.expr]) -> bool:
        path = self.path_of(arguments[0])
        if path is None:
            return False
        if name in ("setattr", "delattr"):
            return True
        if name != "getattr" or len(arguments) < 2:
            return False
        attribute = arguments[1]
        if isinstance(attribute, ast.Constant):
            named = f"{path}.{attribute.value!s}"
            if named in _RESTORABLE:
                self.restored.add(_RESTORABLE[named])
            return named in _PATHS or attribute.value in _ATTRIBUTES | _LOGGING_METHODS
        return True  # a computed name of a module's attribute
