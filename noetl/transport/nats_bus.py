"""A line to NATS that servers and workers share: words told, questions asked, tickets for work.

Nothing here is the truth. The connection comes back by itself; while it is away a word is not told, a question is
refused at once, and whoever waits for tickets is told to look by itself.

A *ticket* says that runs wait in a pool. Tickets lie in a JetStream work queue with one subject per pool, so each
one wakes one worker of all that wait, in whatever process; which run that worker gets is for a server to say.
Losing them, or getting one too many, costs a look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from noetl.errors import RequestRefused, StoreUnavailable

log = logging.getLogger("noetl.nats")

Heard = Callable[[str, bytes], None]  # the last part of the subject, and what was said
Answering = Callable[[str, bytes], Awaitable[bytes]]
Take = Callable[[Any], Awaitable[None]]

PING_SECONDS = 5
RECONNECT_SECONDS = 0.5
TICKET_SECONDS = 60.0  # a ticket that nobody took by then is of no use: the sweep of a server makes new ones
TICKETS_AT_ONCE = 32
HOME_SECONDS = 60.0  # how long the same server is asked, so that a new one gets its share
WHO_SECONDS = 1.0
REDELIVER_SECONDS = 10.0  # after which a ticket goes to another worker, when the one that had it died


class NatsBus:
    """One connection; subjects lie below `prefix`, so installations that share a NATS do not hear each other."""

    def __init__(self, url: str, *, prefix: str = "noetl", name: str = "noetl") -> None:
        self._url = url
        self._prefix = word(prefix)
        self._name = name
        self._stream = f"{self._prefix}-work"
        self._client: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._listening: dict[str, tuple[str, Take]] = {}  # subject -> group, and who takes its messages
        self._subscribed: dict[str, Any] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._pulls: dict[str, Any] = {}
        self._met = asyncio.Event()
        self._closed = False
        self._id = secrets.token_hex(8)
        self._home: tuple[str, float] | None = None  # who is asked first ("": anybody), and until when

    # ── life ────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Connect, and stay connected; nobody waits for it."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    @property
    def up(self) -> bool:
        """Whether NATS can be reached right now."""
        return self._client is not None and bool(self._client.is_connected)

    async def connected(self, seconds: float) -> bool:
        """Wait up to so long for the first connection; whether NATS can be reached now."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._met.wait(), seconds)
        return self.up

    async def stop_answering(self) -> None:
        """Take no new questions, and answer those that are here."""
        for subject in [subject for subject, (group, _) in self._listening.items() if group]:
            del self._listening[subject]
            subscribed = self._subscribed.pop(subject, None)
            if subscribed is not None and self.up:
                with contextlib.suppress(*_errors()):
                    await subscribed.drain()  # what has come already is still answered
        if self._answers:
            await asyncio.wait(self._answers, timeout=5)
        if self.up:
            with contextlib.suppress(*_errors()):
                await self._client.flush(2)

    async def close(self) -> None:
        """Let go."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        for task in self._answers:
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)
        if self._client is not None:
            with contextlib.suppress(*_errors()):
                await self._client.close()

    # ── words ───────────────────────────────────────────────────────────────────────────

    def tell(self, kind: str, to: str, said: bytes = b"") -> bool:
        """Say something to whoever listens for `kind`; False when NATS is away."""
        return self._send(f"{self._prefix}.{kind}.{word(to)}", said)

    def listen(self, kind: str, heard: Heard, *, to: str = "*") -> None:
        """Hear what is told for `kind`, from now on and after every gap."""

        async def take(message: Any) -> None:
            heard(unword(message.subject.rpartition(".")[2]), message.data)

        self._subscribe(f"{self._prefix}.{kind}.{to if to == '*' else word(to)}", "", take)

    # ── questions ───────────────────────────────────────────────────────────────────────

    async def ask(self, verb: str, said: bytes, *, seconds: float) -> bytes:
        """The answer of one of those who answer; StoreUnavailable when there is none in time."""
        client = self._client
        if not self.up:
            raise StoreUnavailable("NATS is away")
        if len(said) > client.max_payload:
            raise StoreUnavailable(f"{len(said)} bytes are more than NATS carries")
        home = await self._find_home()
        try:
            if home is not None:
                try:
                    return await self._request(f"at.{home}.{word(verb)}", said, seconds)
                except _no_responders():
                    self._home = None  # it has gone
            return await self._request(f"ask.{word(verb)}", said, seconds)
        except _errors() as problem:
            self._home = None
            raise StoreUnavailable(f"NATS: nobody answered {verb}: {problem or type(problem).__name__}") from None

    async def _find_home(self) -> str | None:
        """The one of those who answer that is asked first, for a while: it has at hand what it was asked before."""
        now = asyncio.get_running_loop().time()
        if self._home is None or now > self._home[1]:
            self._home = ("", now + HOME_SECONDS)  # whoever asks meanwhile asks anybody
            try:
                name = (await self._request("who", b"", WHO_SECONDS)).decode("ascii", "replace")
                self._home = (name, now + HOME_SECONDS) if name.isalnum() else self._home
            except _errors() as problem:
                log.debug("NATS: nobody says who answers: %s", problem or type(problem).__name__)
        return self._home[0] or None

    async def _request(self, subject: str, said: bytes, seconds: float) -> bytes:
        answer = await self._client.request(f"{self._prefix}.{subject}", said, timeout=seconds)
        data: bytes = answer.data
        return data

    def answer(self, answering: Answering) -> None:
        """Answer questions, one of all who do so; the answer is sent when it is there.

        Who wants to ask the same one again asks it under its own name."""

        async def say_who(message: Any) -> None:
            with contextlib.suppress(*_errors()):
                await message.respond(self._id.encode())

        async def take(message: Any) -> None:
            task = asyncio.get_running_loop().create_task(self._answer(message, answering))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

        for subject, answered in (("ask.*", take), (f"at.{self._id}.*", take), ("who", say_who)):
            self._subscribe(f"{self._prefix}.{subject}", "servers", answered)

    @property
    def most_bytes(self) -> int:
        """What one message may hold."""
        return int(self._client.max_payload) if self._client is not None else 0

    # ── tickets ─────────────────────────────────────────────────────────────────────────

    def issue(self, pool: str, count: int) -> None:
        """Tell workers of a pool that so many runs wait."""
        for _ in range(min(count, TICKETS_AT_ONCE)):
            if not self._send(f"{self._prefix}.work.{word(pool)}", b""):
                return

    async def ticket(self, pool: str, *, most: int, wait: float) -> int:
        """How many tickets of a pool came within `wait` seconds, up to `most`; StoreUnavailable when none can come."""
        if not self.up:
            raise StoreUnavailable("NATS is away")
        try:
            pull = self._pulls.get(pool) or await self._open_pull(pool)
            messages = await pull.fetch(most, timeout=max(wait, 0.05))
        except TimeoutError:
            if not self.up:
                raise StoreUnavailable("NATS is away") from None
            return 0
        except _errors() as problem:
            self._pulls.pop(pool, None)  # wiped, or the stream is gone: made again at the next look
            raise StoreUnavailable(f"NATS: {problem or type(problem).__name__}") from None
        for message in messages:
            with contextlib.suppress(*_errors()):
                await message.ack()
        return len(messages)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> None:
        from nats.aio.client import Client

        client = Client()

        async def note(problem: Exception) -> None:
            log.debug("NATS: %s", problem)

        async def away() -> None:
            if not self._closed:
                log.warning("NATS is away; going on without it")

        async def back() -> None:
            log.warning("NATS is back")
            await self._prepare()

        await client.connect(
            [each.strip() for each in self._url.split(",")],
            name=self._name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]  # parts of a second do
            connect_timeout=2,
            ping_interval=PING_SECONDS,
            error_cb=note,
            disconnected_cb=away,
            reconnected_cb=back,
        )
        self._client = client
        for subject in list(self._listening):
            await self._open(subject)
        await self._prepare()
        self._met.set()

    async def _prepare(self) -> None:
        """See that the work queue is there; a NATS that lost its data gets a new one."""
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

        self._pulls.clear()
        try:
            await self._client.jetstream(timeout=5).add_stream(
                StreamConfig(
                    name=self._stream,
                    subjects=[f"{self._prefix}.work.*"],
                    retention=RetentionPolicy.WORK_QUEUE,
                    storage=StorageType.FILE,
                    discard=DiscardPolicy.OLD,
                    max_age=TICKET_SECONDS,
                    max_msgs=100_000,
                )
            )
        except _errors() as problem:
            log.warning("NATS has no work queue for us (%s); workers look by themselves", problem)

    async def _open_pull(self, pool: str) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig

        await self._prepare()
        stream = self._client.jetstream(timeout=5)
        durable = f"pool-{word(pool)}"
        await stream.add_consumer(
            self._stream,
            ConsumerConfig(
                durable_name=durable,
                filter_subject=f"{self._prefix}.work.{word(pool)}",
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=REDELIVER_SECONDS,
                max_ack_pending=100_000,
            ),
        )
        pull = self._pulls[pool] = await stream.pull_subscribe_bind(consumer=durable, stream=self._stream)
        return pull

    def _subscribe(self, subject: str, group: str, take: Take) -> None:
        self._listening[subject] = (group, take)
        if self._client is not None:
            self._spawn(self._open(subject))

    async def _open(self, subject: str) -> None:
        group, take = self._listening[subject]
        self._subscribed[subject] = await self._client.subscribe(subject, queue=group, cb=take)

    def _send(self, subject: str, said: bytes) -> bool:
        if not self.up or len(said) > self._client.max_payload:
            return False
        self._spawn(self._client.publish(subject, said))
        return True

    def _spawn(self, sending: Awaitable[Any]) -> None:
        async def send() -> None:
            with contextlib.suppress(*_errors()):  # whoever did not hear it looks by itself
                await sending

        task = asyncio.get_running_loop().create_task(send())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, message: Any, answering: Answering) -> None:
        said = await answering(unword(message.subject.rpartition(".")[2]), message.data)
        with contextlib.suppress(*_errors()):  # whoever asked asks again
            await message.respond(said)


def word(text: str) -> str:
    """A text as one part of a subject."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"={ord(found[0]):x}=", text) or "=="


def unword(part: str) -> str:
    """The text that `word` made a part of a subject of."""
    return "" if part == "==" else re.sub(r"=([0-9a-f]+)=", lambda found: chr(int(found[1], 16)), part)


def _no_responders() -> type[BaseException]:
    from nats.errors import NoRespondersError

    return NoRespondersError


def _errors() -> tuple[type[BaseException], ...]:
    from nats import errors

    return (errors.Error, OSError, TimeoutError)


def open_bus(url: str, prefix: str, name: str) -> NatsBus:
    """A bus for this installation; `start` connects it."""
    try:
        import nats  # noqa: F401 - said now, in words, not by a connection that never comes
    except ImportError:
        raise RequestRefused("work over NATS needs its driver: pip install 'noetl[nats]'") from None
    return NatsBus(url, prefix=prefix, name=f"noetl-{name}")
