"""Constructs the services that routes and periodic duties use: triggers, deliveries, notifications, answer links."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from noetl import __version__
from noetl.runtime.clock import Clock
from noetl.secrets.master_key import open_ring
from noetl.server.answer_links import AnswerLinks
from noetl.server.http.access import Tokens
from noetl.server.http.dependencies import AppState
from noetl.server.notifications.channels import Channels
from noetl.server.notifications.notifier import Notifier
from noetl.server.notifications.rules import Rules
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.read_models.result_queries import ResultQueries
from noetl.server.scheduling.backfills import Backfills
from noetl.server.scheduling.deliveries import Deliveries, DeliveryLimits
from noetl.server.scheduling.kinds import KINDS
from noetl.server.scheduling.resources import TriggerResources
from noetl.server.scheduling.schedules import Schedules
from noetl.server.scheduling.trigger_service import Triggers
from noetl.server.scheduling.webhooks import Webhooks
from noetl.settings import Settings
from noetl.storage.cluster.postgres import PostgresCluster
from noetl.storage.ports.deliveries import DeliveryStore
from noetl.storage.ports.secrets import CredentialStore
from noetl.storage.ports.triggers import TriggerStore
from noetl.tools.registry import specs


class ServiceBackends(NamedTuple):
    """The back ends of the services."""

    triggers: TriggerStore
    deliveries: DeliveryStore
    credentials: CredentialStore
    clock: Clock
    cluster: PostgresCluster | None = None


def build_app_state(
    orchestrator: Orchestrator,
    backends: ServiceBackends,
    tokens: Tokens,
    *,
    home: Path,
    allows_address: Callable[[str], bool],
    settings: Settings | None = None,
) -> AppState:
    """The services of a server, whose master key is in `home`; without settings with their defaults."""
    clock = backends.clock
    triggers = Triggers(backends.triggers, orchestrator.catalog, clock, KINDS, backends.credentials)
    ring = cache(partial(open_ring, home, os.environ))
    links = AnswerLinks(ring)
    channels = Channels(backends.credentials, allows_address)
    notifier = Notifier(
        Rules(backends.triggers, clock, backends.credentials),
        backends.deliveries,
        triggers,
        orchestrator,
        channels,
        clock,
        backends.cluster,
        links,
    )
    deliveries = Deliveries(backends.deliveries, triggers, orchestrator, clock, notifier)
    if settings is not None:
        notifier.attempts = settings.notifications_attempts
        notifier.link_seconds = settings.notifications_link_expiry
        deliveries.limits = DeliveryLimits(
            settings.deliveries_max_pending, settings.deliveries_max_backlog, settings.deliveries_retention
        )
    schedules = Schedules(triggers, deliveries, clock)
    webhooks = Webhooks(triggers, deliveries, orchestrator, backends.credentials, clock)
    return AppState(
        orchestrator=orchestrator,
        tokens=tokens,
        specs=specs,
        credentials=backends.credentials,
        schedules=schedules,
        webhooks=webhooks,
        triggers=triggers,
        deliveries=deliveries,
        resources=TriggerResources(deliveries, schedules, webhooks),
        notifier=notifier,
        answer_links=links,
        key_ring=ring,
        backfills=Backfills(backends.triggers, orchestrator.catalog, clock),
        queries=ResultQueries(orchestrator.results),
        version=__version__,
    )
