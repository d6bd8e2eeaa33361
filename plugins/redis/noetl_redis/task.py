"""Runs the commands of one task."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from typing import Any

from noetl.tool import BadAuth, Outcome, SecretUnavailable, ToolCall, error, jsonable, ok
from noetl_redis.connection import client_for, explain, parsed, text_of

_AUTH = "set `user`, `password` and `db` of `auth`"
_TRANSACTION = "use `commands` with `transaction: true`"
_MESSAGES = "messages of channels are not supported; use a stream (XREAD) or a list (BLPOP)"
# Commands after which a connection behaves differently for the next task -> what to write instead.
_STATEFUL = {
    **dict.fromkeys(("SELECT", "AUTH", "HELLO", "RESET", "QUIT"), _AUTH),
    **dict.fromkeys(("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH"), _TRANSACTION),
    **dict.fromkeys(("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC"), _MESSAGES),
    **dict.fromkeys(("CLIENT REPLY", "CLIENT TRACKING", "CLIENT NO-TOUCH", "READONLY", "READWRITE", "ASKING"),
                    "leave it out"),
}  # fmt: skip


class BadCommand(ValueError):
    """A command that cannot be sent."""


async def run(call: ToolCall) -> Outcome:
    """Run the commands and return the replies."""
    try:
        single = call.input.get("command") is not None
        commands = [_words(each) for each in _commands(call.input)]
        async with asyncio.timeout(call.timeout.total):
            replies = await _send(call, commands)
    except (BadAuth, BadCommand) as wrong:
        return error("schema", str(wrong))
    except SecretUnavailable as missing:
        return error("auth", str(missing))
    except TimeoutError:
        return error("timeout", f"redis: no reply within {call.timeout.total:g} s (spec.timeout)")
    except Exception as failure:
        info = explain(failure)
        if info is None:
            raise
        return Outcome(status="error", error=info, helpers={"redis": {"commands": None}})
    values = [_value(reply, parse=bool(call.input.get("json"))) for reply in replies]
    return ok(values[0] if single else values, redis={"commands": len(values)})


async def _send(call: ToolCall, commands: list[list[Any]]) -> list[Any]:
    client = await client_for(call, call.input["auth"])
    if len(commands) == 1:
        return [await client.execute_command(*commands[0])]
    async with client.pipeline(transaction=bool(call.input.get("transaction"))) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute())


def _commands(given: Mapping[str, Any]) -> list[Any]:
    if given.get("command") is not None:
        return [given["command"]]
    commands = given.get("commands")
    if not isinstance(commands, list | tuple) or not commands:
        raise BadCommand("redis requires `command`, or `commands` with at least one command")
    return list(commands)


def _words(command: Any) -> list[Any]:
    """A command as the arguments that are sent."""
    if isinstance(command, str):
        try:
            words: list[Any] = list(shlex.split(command))
        except ValueError as wrong:
            raise BadCommand(f"the command {command!r} cannot be split: {wrong}; use a list") from None
    elif isinstance(command, list | tuple):
        words = [_argument(word) for word in command]
    else:
        raise BadCommand(f"a command is a list or a string, not {type(command).__name__}")
    if not words:
        raise BadCommand("a command has no words")
    name = str(words[0]).upper()
    instead = _STATEFUL.get(name) or (_STATEFUL.get(f"{name} {str(words[1]).upper()}") if len(words) > 1 else None)
    if instead is not None:
        raise BadCommand(f"{name} changes the connection, which tasks share; {instead}")
    return words


def _argument(value: Any) -> Any:
    if isinstance(value, str | bytes | int | float) and not isinstance(value, bool):
        return value
    return json.dumps(jsonable(value), separators=(",", ":"), ensure_ascii=False)


def _value(reply: Any, *, parse: bool) -> Any:
    """A reply as JSON data."""
    if isinstance(reply, bytes):
        return parsed(reply) if parse else text_of(reply)
    if isinstance(reply, Mapping):
        return {str(_value(key, parse=False)): _value(each, parse=parse) for key, each in reply.items()}
    if isinstance(reply, list | tuple | set | frozenset):
        return [_value(each, parse=parse) for each in reply]
    return reply
