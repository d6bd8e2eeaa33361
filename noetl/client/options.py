"""The options of operations, as typed keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class ListOptions(TypedDict, total=False):
    """Further filters of a list of executions."""

    trigger: str | None
    labels: Sequence[str]


class SubmitOptions(TypedDict, total=False):
    """Options of `submit` and `run`."""

    content: str | None  # the text of a playbook, instead of a registered path
    file: str  # of `content`, in a bundle
    version: int | str | None
    entry_step: str | None
    return_step: str | None
    strict: bool
    legacy: bool
    labels: Mapping[str, str]


class ScheduleOptions(TypedDict, total=False):
    """Options of `add_schedule`."""

    name: str | None
    tz: str | None
    version: int | None
    payload: Mapping[str, Any] | None
    catch_up: Literal["none", "last", "all"] | None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None
    concurrency: int | None
    jitter: float | str | None
    deadline: float | str | None
    labels: Mapping[str, str] | None
    paused: bool | None


class WebhookOptions(TypedDict, total=False):
    """Options of `add_webhook`."""

    name: str | None
    credential: str | None
    version: int | None
    payload: Mapping[str, Any] | None
    window: float | None
    preset: Literal["noetl", "github", "stripe", "slack", "meta", "websub", "hmac", "none"] | None
    signature: Mapping[str, Any] | None
    allow_unsigned: bool | None
    topic: str | None
    headers: Sequence[str] | None
    raw_body: bool | None
    respond: Literal["accepted", "result"] | None
    wait: float | None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None
    concurrency: int | None
    labels: Mapping[str, str] | None


class BackfillOptions(TypedDict, total=False):
    """Options of `add_backfill`."""

    timezone: str | None  # of days, weeks and months, and of times without an offset
    variable: str | None  # key of the workload that has the slot; default `slot`
    concurrency: int | None
    name: str | None
    version: int | str | None
    payload: Mapping[str, Any] | None


class ForkOptions(TypedDict, total=False):
    """Options of `fork`."""

    version: int | str | None
    payload: Mapping[str, Any] | None  # instead of that of the execution
    changes: Mapping[str, Any] | None  # replaces some keys of the payload
    merge: Mapping[str, Any] | None  # is merged into the payload


class RerunOptions(ForkOptions, total=False):
    """Options of `rerun`."""

    failed: bool
