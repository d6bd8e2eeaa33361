"""State of the standard library that a call may change: saved before the call, restored after it.

The parent names the parts that the text of the code changes (`interpreter_changes`), so other calls pay nothing. A
function of `PARTS` saves one part and returns a function that restores it; that one returns False if it cannot, and the
process is not used again. Modules are imported when they are needed, and by names of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Restore = Callable[[], bool]


def save_random() -> Restore:
    """The shared generator."""
    import random

    state = random.getstate()

    def restore() -> bool:
        random.setstate(state)
        return True

    return restore


def save_decimal() -> Restore:
    """The context of this thread."""
    import decimal

    context = decimal.getcontext().copy()

    def restore() -> bool:
        decimal.setcontext(context)
        return True

    return restore


def save_locale() -> Restore:
    """The locale of every category."""
    import locale

    name = locale.setlocale(locale.LC_ALL)

    def restore() -> bool:
        return locale.setlocale(locale.LC_ALL, name) == name

    return restore


def save_socket() -> Restore:
    """The default timeout."""
    import socket

    timeout = socket.getdefaulttimeout()

    def restore() -> bool:
        socket.setdefaulttimeout(timeout)
        return True

    return restore


def save_csv() -> Restore:
    """Dialects and the limit of a field."""
    import csv

    limit = csv.field_size_limit()
    dialects = {name: csv.get_dialect(name) for name in csv.list_dialects()}

    def restore() -> bool:
        csv.field_size_limit(limit)
        for name in csv.list_dialects():
            csv.unregister_dialect(name)
        for name, dialect in dialects.items():
            csv.register_dialect(name, dialect)  # type: ignore[arg-type]
        return True

    return restore


def save_umask() -> Restore:
    """The mask of permissions of new files."""
    import os

    mask = os.umask(0o077)
    os.umask(mask)

    def restore() -> bool:
        os.umask(mask)
        return True

    return restore


def save_gc() -> Restore:
    """Whether and how often garbage is collected."""
    import gc

    state = gc.isenabled(), gc.get_threshold()

    def restore() -> bool:
        gc.set_threshold(*state[1])
        (gc.enable if state[0] else gc.disable)()
        return True

    return restore


def save_warnings() -> Restore:
    """Filters, and which warnings were shown once."""
    import warnings

    filters: list[Any] = list(warnings.filters)
    once: dict[Any, Any] = dict(warnings.onceregistry)  # type: ignore[attr-defined]

    def restore() -> bool:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings.onceregistry.clear()  # type: ignore[attr-defined]
        warnings.onceregistry.update(once)  # type: ignore[attr-defined]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        return True

    return restore


def save_logging() -> Restore:
    """Loggers, handlers, names of levels, and redirected warnings."""
    import logging

    manager = logging.root.manager

    def loggers() -> dict[str, logging.Logger]:
        found = {name: each for name, each in manager.loggerDict.items() if isinstance(each, logging.Logger)}
        return {"": logging.root, **found}

    def handlers() -> list[Any]:
        return [logging.lastResort, *(each for ref in logging._handlerList if (each := ref()) is not None)]  # type: ignore[attr-defined]

    def state_of(each: Any) -> dict[str, Any]:
        lists = {name: list(value) for name, value in vars(each).items() if name in ("handlers", "filters")}
        return {**vars(each), **lists}

    before = {name: (each, state_of(each)) for name, each in loggers().items()}
    known = [(each, state_of(each)) for each in handlers()]
    tables: tuple[dict[Any, Any], ...] = (logging._levelToName, logging._nameToLevel)
    levels = [(names, dict(names)) for names in tables]
    disabled, capturing = manager.disable, logging._warnings_showwarning  # type: ignore[attr-defined]

    def restore() -> bool:
        logging.captureWarnings(capturing is not None)
        old = {id(each) for each, _ in known}
        for each in handlers():
            if id(each) not in old:
                each.close()
        for each, state in known:
            vars(each).clear()
            vars(each).update(state)
        for name, each in loggers().items():
            if name in before:
                parent = each.parent  # may be a logger that a module has created meanwhile
                vars(each).clear()
                vars(each).update(before[name][1], parent=parent)
            elif name.partition(".")[0] not in sys.modules:  # of the code
                each.setLevel(logging.NOTSET)
                each.handlers, each.filters, each.propagate, each.disabled = [], [], True, False
            elif is_configured(each):  # of a module, or of the code
                return False
        for names, values in levels:
            names.clear()
            names.update(values)
        manager.disable = disabled
        manager._clear_cache()  # type: ignore[attr-defined]
        return True

    return restore


def is_configured(logger: Any) -> bool:
    """Whether a logger has more than the handler that libraries add to be silent."""
    changed = logger.level or logger.filters or not logger.propagate or logger.disabled
    return bool(changed) or any(type(each).__name__ != "NullHandler" for each in logger.handlers)


PARTS: dict[str, Callable[[], Restore]] = {
    "random": save_random,
    "decimal": save_decimal,
    "locale": save_locale,
    "socket": save_socket,
    "csv": save_csv,
    "umask": save_umask,
    "gc": save_gc,
    "warnings": save_warnings,
    "logging": save_logging,
}


def restore_all(saved: list[Restore]) -> bool:
    """Restore in reverse order; False if a part could not be restored."""
    complete = True
    for restore in reversed(saved):
        try:
            complete = restore() and complete
        except Exception:  # noqa: BLE001 - the code may have broken what is restored; the process is replaced
            complete = False
    return complete
