"""Compiles and executes authors' code, and finds its output."""

from __future__ import annotations

import sys
from typing import Any

from noetl.tools.python.child.data import TaskError

FILE = "<task>"
MAX_COMPILED = 256


class Scope(dict):  # type: ignore[type-arg]
    """A mapping whose keys are also attributes, at every level: `context.workload.get("x")`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no key {name!r}; available keys: {', '.join(map(str, self)) or 'none'}") from None

    def __getitem__(self, name: Any) -> Any:
        value = dict.__getitem__(self, name)
        if type(value) is dict:
            value = self[name] = Scope(value)
        return value

    def get(self, name: Any, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self[name] if name in self else default  # noqa: SIM401 - dict.get would be this method


_compiled: dict[str, tuple[Any, bool]] = {}


def compile_code(source: str) -> tuple[Any, bool]:
    """The compiled code, and whether it is a body with top-level `return` or `await`."""
    compiled = _compiled.get(source)
    if compiled is None:
        try:
            compiled = compile(source, FILE, "exec", dont_inherit=True), False
        except SyntaxError as failure:
            if "outside function" not in (failure.msg or ""):
                raise
            compiled = compile_body(source), True
        if len(_compiled) >= MAX_COMPILED:
            _compiled.clear()
        _compiled[source] = compiled
    return compiled


def compile_body(source: str) -> Any:
    """Compile code with top-level `return` or `await` as the body of a function named `__body__`.

    All names it binds are declared global, so that it behaves like a module."""
    import ast

    tree = ast.parse(source, FILE)
    awaits = False

    class TopLevel(ast.NodeTransformer):
        """Transforms top-level statements only; nested functions and classes are unchanged."""

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            return node

        visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:  # a global cannot be annotated
            self.generic_visit(node)
            return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else None

        def visit_Await(self, node: ast.Await) -> ast.AST:
            nonlocal awaits
            awaits = True
            self.generic_visit(node)
            return node

        visit_AsyncFor = visit_AsyncWith = visit_Await  # type: ignore[assignment]  # noqa: N815

    tree = TopLevel().visit(tree)
    no_arguments = ast.arguments([], [], None, [], [], None, [])
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    statements = [node for node in tree.body if node not in future] or [ast.Pass()]
    node_type = ast.AsyncFunctionDef if awaits else ast.FunctionDef

    def compile_module(body: list[Any]) -> Any:
        function = node_type("__body__", no_arguments, body, [], None)
        if "type_params" in node_type._fields:  # since 3.12
            function.type_params = []  # type: ignore[union-attr]
        module = ast.Module([*future, function], [])
        return compile(ast.fix_missing_locations(module), FILE, "exec", dont_inherit=True)

    code = compile_module(statements)
    body = next(const for const in code.co_consts if hasattr(const, "co_varnames"))
    bound = [name for name in (*body.co_varnames, *body.co_cellvars) if not name.startswith(".")]
    return compile_module([ast.Global(bound), *statements]) if bound else code


def import_libraries(libs: Any, names: dict[str, Any]) -> None:
    """`libs:` as a mapping alias -> module, as `{from, import}` entries, or as a list of either."""
    if isinstance(libs, str):
        libs = [libs]
    entries = libs.items() if isinstance(libs, dict) else [(None, entry) for entry in libs or ()]
    for alias, entry in entries:
        if isinstance(entry, dict) and "import" not in entry and alias is None and len(entry) == 1:
            [(alias, entry)] = entry.items()  # a list of one-key mappings
        try:
            bind_library(alias, entry, names)
        except ImportError as failure:
            named = entry.get("from") or entry.get("import") if isinstance(entry, dict) else entry
            failure.add_note(f"in `libs: {named}`")
            raise


def bind_library(alias: str | None, entry: Any, names: dict[str, Any]) -> None:
    """Import one entry of `libs` and bind its name."""
    if entry is None:
        entry = alias
    if isinstance(entry, dict):
        wanted = entry.get("import")
        source = entry.get("from")
        given = entry.get("as")
        if source is None:
            return bind_library(given or alias, wanted, names)
        parts = [part.strip() for part in wanted.split(",")] if isinstance(wanted, str) else list(wanted or ())
        if not parts:
            return bind_library(given or alias, source, names)
        for part in parts:
            attribute, _, renamed = part.partition(" as ")
            only = alias if len(parts) == 1 else None
            names[renamed.strip() or given or only or attribute] = attribute_of(source, attribute.strip())
        return None
    if not isinstance(entry, str):
        raise TaskError(f"`libs` accepts module names and {{from, import}} entries, not {entry!r}", "schema")
    module, _, renamed = entry.partition(" as ")
    alias = renamed.strip() or alias
    module = module.strip()
    try:
        bind_module(alias, module, names)
    except ModuleNotFoundError as failure:
        provided = modules_of(module) if failure.name == module.partition(".")[0] else []
        if not provided:
            raise
        for each in provided if alias is None else provided[:1]:
            bind_module(alias, each, names)
    return None


def bind_module(alias: str | None, module: str, names: dict[str, Any]) -> None:
    """Import a module and bind it to the alias, or the top-level package to its own name."""
    if alias is not None:
        names[alias] = module_or_attribute(module)
        return
    top = module.partition(".")[0]
    __import__(module)
    names[top] = sys.modules[top]


def modules_of(distribution: str) -> list[str]:
    """The public modules of an installed distribution: `PyYAML` provides `yaml`, `psycopg2-binary` `psycopg2`."""
    import re
    from importlib.metadata import packages_distributions
    from importlib.util import find_spec

    def normalized(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    wanted = normalized(distribution)
    stem = wanted.removesuffix("-binary").replace("-", "_")
    if stem != wanted and find_spec(stem) is not None:
        return [stem]
    provided = packages_distributions()
    return sorted(
        module
        for module, providers in provided.items()
        if not module.startswith("_") and wanted in map(normalized, providers)
    )


def module_or_attribute(path: str) -> Any:
    """`json`, `os.path`, or `datetime.datetime` (an attribute of a module)."""
    try:
        __import__(path)
        return sys.modules[path]
    except ModuleNotFoundError as failure:
        module, _, attribute = path.rpartition(".")
        if not module or failure.name != path:
            raise
        return attribute_of(module, attribute)


def attribute_of(module: str, attribute: str) -> Any:
    """`from module import attribute`."""
    loaded = __import__(module, fromlist=[attribute])
    try:
        return getattr(loaded, attribute)
    except AttributeError:
        raise ImportError(f"cannot import name {attribute!r} from {module!r}", name=module) from None


def bind_arguments(function: Any, inputs: dict[str, Any], scopes: dict[str, Any], name: str) -> tuple[list[Any], Any]:
    """Positional and keyword arguments for the parameters of a function."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    missing: list[str] = []
    names, only_keywords, takes_rest, defaults = parameters_of(function)
    for index, parameter in enumerate(names):
        if parameter in inputs:
            value = inputs[parameter]
        elif parameter in scopes:
            value = scopes[parameter]
        elif index >= len(names) - defaults:
            # This parameter uses its default, so the following ones are passed by keyword.
            for later in names[index + 1 :]:
                if later in inputs or later in scopes:
                    keywords[later] = inputs[later] if later in inputs else scopes[later]
            break
        else:
            missing.append(parameter)
            continue
        positional.append(value)
    for parameter, required in only_keywords.items():
        if parameter in inputs or parameter in scopes:
            keywords[parameter] = inputs[parameter] if parameter in inputs else scopes[parameter]
        elif required:
            missing.append(parameter)
    if missing:
        available = ", ".join(sorted(inputs)) or "none"
        wanted = ", ".join(f'"{each}"' for each in missing)
        raise TaskError(f"{name}() requires {wanted}, which is not in the task's input (available: {available})")
    if takes_rest:
        used = {*names, *keywords}
        keywords.update({key: value for key, value in inputs.items() if key not in used})
    return positional, keywords


def parameters_of(function: Any) -> tuple[list[str], dict[str, bool], bool, int]:
    """Positional names, keyword-only names (and whether required), whether `**` is accepted, number of defaults."""
    code = getattr(function, "__code__", None)
    if code is not None and not hasattr(function, "__wrapped__") and not hasattr(function, "__self__"):
        count, extra = code.co_argcount, code.co_kwonlyargcount
        names = list(code.co_varnames[:count])
        known = function.__kwdefaults__ or {}
        only = {name: name not in known for name in code.co_varnames[count : count + extra]}
        return names, only, bool(code.co_flags & 0x08), len(function.__defaults__ or ())
    import inspect

    names, only, rest, defaults = [], {}, False, 0
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
            defaults += parameter.default is not parameter.empty
        elif parameter.kind is parameter.KEYWORD_ONLY:
            only[parameter.name] = parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_KEYWORD:
            rest = True
    return names, only, rest, defaults


def await_result(value: Any) -> Any:
    """The value, or the result of the coroutine."""
    if hasattr(value, "__await__"):
        import asyncio

        async def wait() -> Any:
            return await value

        return asyncio.run(wait())
    return value


def execute(request: dict[str, Any], names: dict[str, Any]) -> Any:
    """Run the author's code in these globals and return its output."""
    inputs: dict[str, Any] = request["inputs"]
    scopes = Scope(request.get("scopes") or {})
    context = Scope({**(scopes.get("workload") or {}), **(scopes.get("ctx") or {}), **scopes, **inputs})
    special = {
        **scopes,
        "context": context,
        "ctx": Scope({**(scopes.get("workload") or {}), **(scopes.get("ctx") or {})}),
        "args": Scope({**(scopes.get("args") or {}), **inputs}),
        "results": scopes.get("results") or scopes.get("steps") or Scope(),
        "input": Scope(inputs),
        "inputs": inputs,
        "input_data": inputs,
    }
    import_libraries(request.get("libs"), names)
    function_path = request.get("callable")
    if function_path:
        module, _, attribute = function_path.rpartition(":")
        function = module_or_attribute(module)
        for part in attribute.split("."):
            if not hasattr(function, part):
                raise ImportError(f"module {module!r} has no {attribute!r}", name=module)
            function = getattr(function, part)
        if not callable(function):
            raise TaskError(f"{module}:{attribute} is not callable")
        positional, keywords = bind_arguments(function, inputs, special, attribute)
        return await_result(function(*positional, **keywords))
    code, is_body = compile_code(request["code"])
    for name in ("context", "args", "input", "input_data"):
        names[name] = special[name]
    if "ctx" in scopes:
        names["ctx"] = special["ctx"]
    if "json" in request["code"]:
        import json

        names.setdefault("json", json)
    names.update(inputs)
    before = names.get("result", names)  # an input may be named `result`; it is not the output
    main_before = names.get("main")
    try:
        exec(code, names)
        returned = await_result(names["__body__"]()) if is_body else None
    except SystemExit as exit:
        if exit.code not in (None, 0):
            raise TaskError(f"the code called sys.exit({exit.code!r})") from exit
        result = names.get("result", before)
        return None if result is before else result
    if returned is not None:
        return returned
    result = names.get("result", before)
    if result is not before:
        return result
    main = names.get("main")
    if callable(main) and main is not main_before:
        positional, keywords = bind_arguments(main, inputs, special, "main")
        try:
            return await_result(main(*positional, **keywords))
        except SystemExit as exit:
            if exit.code not in (None, 0):
                raise TaskError(f"the code called sys.exit({exit.code!r})") from exit
    return None
