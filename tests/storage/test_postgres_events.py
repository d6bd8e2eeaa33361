"""Behaviour of the Postgres event store alone: concurrent servers, lost connections, damaged rows."""

import asyncio
import time
from contextlib import suppress

import asyncpg
import psycopg
import pytest

from noetl.core.model.events import CtxPatched, PlaybookProcessed
from noetl.core.model.ids import number_at
from noetl.errors import CorruptLog, StoreUnavailable, VersionConflict
from noetl.storage.events.postgres import SCHEMA, WEEK, PostgresEventStore
from noetl.storage.postgres.database import PostgresDatabase
from tests.conformance.event_store import BODIES, make_append


def open_store(dsn: str) -> PostgresEventStore:
    return PostgresEventStore(PostgresDatabase(dsn))


def test_one_of_two_concurrent_appends_of_two_servers_succeeds(database):
    async def scenario():
        stores = [open_store(database), open_store(database)]
        for n in range(20):
            await stores[0].append(make_append(str(1000 + n), 0, BODIES[0]))
        for seq in range(1, 6):
            rivals = [
                store.append(make_append(str(1000 + n), seq, CtxPatched(patch={"by": number})))
                for n in range(20)
                for number, store in enumerate(stores)
            ]
            answers = await asyncio.gather(*rivals, return_exceptions=True)
            for pair in zip(answers[::2], answers[1::2], strict=True):
                assert sorted(type(answer).__name__ for answer in pair) == ["NoneType", "VersionConflict"]
        for n in range(20):
            assert [each.seq for each in await stores[1].read(str(1000 + n))] == [1, 2, 3, 4, 5, 6]
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_idempotency_keys_are_unique_across_servers(database):
    async def scenario():
        stores = [open_store(database), open_store(database)]
        first = [make_append(str(2000 + n), 0, BODIES[0], key=f"k{n}") for n in range(50)]
        second = [make_append(str(3000 + n), 0, BODIES[0], key=f"k{49 - n}") for n in range(50)]
        answers = await asyncio.gather(
            *(stores[0].append(each) for each in first),
            *(stores[1].append(each) for each in second),
            return_exceptions=True,
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict"] * 50 + ["NoneType"] * 50
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_repeated_connection_failures_lose_and_duplicate_no_append(database):
    acknowledged: dict[str, int] = {}
    cuts = 0

    async def write(store: PostgresEventStore, execution_id: str) -> None:
        seq = 0
        while seq < 120 or cuts < 3:
            body = BODIES[0] if seq == 0 else CtxPatched(patch={"n": seq})
            try:
                await store.append(make_append(execution_id, seq, body))
                seq += 1
            except StoreUnavailable:
                with suppress(StoreUnavailable):
                    seq = max(seq, len(await store.read(execution_id)))
            acknowledged[execution_id] = seq

    async def scenario():
        nonlocal cuts
        store = open_store(database)
        writers = [asyncio.create_task(write(store, str(1000 + n))) for n in range(8)]
        everyone = asyncio.gather(*writers)
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as knife:
            while not everyone.done():
                await knife.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                cuts += 1
                await asyncio.sleep(0.2)
        await everyone
        assert cuts >= 3
        for execution_id, seq in acknowledged.items():
            events = await store.read(execution_id)
            assert [each.seq for each in events] == list(range(1, seq + 1))
            assert [each.body.patch["n"] for each in events[1:]] == list(range(1, seq))
        await store.close()

    asyncio.run(scenario())


class LosesAnswers:
    """A connection that breaks after its statements were carried out."""

    def __init__(self, connection: object, losses: int) -> None:
        self._connection = connection
        self.left = losses

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    async def fetch(self, query: str, *values: object) -> object:
        answer = await self._connection.fetch(query, *values)  # type: ignore[attr-defined]
        if self.left:
            self.left -= 1
            raise ConnectionResetError("the answer got lost")
        return answer


def test_an_append_whose_result_was_lost_is_written_once(database):
    async def scenario():
        store = open_store(database)
        writer = store._writer
        await store.append(make_append("1001", 0, BODIES[0]))
        await store.append(make_append("1002", 0, BODIES[0], key="taken"))
        writer._connection = LosesAnswers(writer._connection, 1)
        answers = await asyncio.gather(
            store.append(make_append("1001", 1, CtxPatched(patch={"by": "us"}))),
            store.append(make_append("1002", 5, BODIES[1])),
            store.append(make_append("1003", 0, BODIES[0], key="taken")),
            store.append(make_append("1004", 0, *BODIES[:2])),
            return_exceptions=True,
        )
        assert [type(answer).__name__ for answer in answers] == ["NoneType", "VersionConflict", "Conflict", "NoneType"]
        assert [len(await store.read(each)) for each in ("1001", "1002", "1003", "1004")] == [2, 1, 0, 2]
        # A rival's event at the same place is not taken for ours.
        rival = open_store(database)
        await rival.append(make_append("1001", 2, CtxPatched(patch={"by": "rival"})))
        writer._connection = LosesAnswers(writer._connection, 1)
        with pytest.raises(VersionConflict):
            await store.append(make_append("1001", 2, CtxPatched(patch={"by": "us"})))
        await store.close()
        await rival.close()

    asyncio.run(scenario())


def test_pending_appends_to_one_execution_are_written_in_order(database):
    async def scenario():
        store = open_store(database)
        appends = [
            store.append(make_append("1001", 0, BODIES[0])),
            store.append(make_append("1001", 0, BODIES[0])),
            store.append(make_append("1001", 1, BODIES[1])),
            store.append(make_append("1001", 2, BODIES[2])),
        ]
        answers = await asyncio.gather(*appends, return_exceptions=True)
        assert [type(each).__name__ for each in answers] == ["NoneType", "VersionConflict", "NoneType", "NoneType"]
        assert [each.seq for each in await store.read("1001")] == [1, 2, 3]
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        ("UPDATE noetl_log SET data = set_byte(data, 3, 0) WHERE first = 2", "seq 2"),
        ("DELETE FROM noetl_log WHERE first = 2", "seq 2"),
        ("DELETE FROM noetl_log WHERE first = 3", "ends at seq 2"),
    ],
)
def test_damage_is_detected_and_other_executions_stay_readable(database, damage, where):
    async def scenario():
        store = open_store(database)
        for execution_id in ("1001", "1002"):
            for seq in range(3):
                await store.append(make_append(execution_id, seq, BODIES[seq]))
        with psycopg.connect(database, autocommit=True) as knife:
            knife.execute(damage + " AND execution = 1001")
        with pytest.raises(CorruptLog, match=where):
            await store.read("1001")
        assert len(await store.read("1002")) == 3
        await store.close()

    asyncio.run(scenario())


def test_a_tail_yields_the_appends_of_another_server(database):
    async def scenario():
        writing, reading = open_store(database), open_store(database)
        await writing.append(make_append("1001", 0, BODIES[0]))
        seen: list[int] = []

        async def follow():
            seen.extend([recorded.seq async for recorded in reading.tail("1001")])

        follower = asyncio.create_task(follow())
        await writing.append(make_append("1001", 1, BODIES[1]))
        await writing.append(make_append("1001", 2, PlaybookProcessed(outcome="success"), status="success"))
        await asyncio.wait_for(follower, 10)
        assert seen == [1, 2, 3]
        await writing.close()
        await reading.close()

    asyncio.run(scenario())


def test_an_unreachable_server_is_a_clear_error():
    async def scenario():
        store = open_store("postgresql://nobody@127.0.0.1:1/none")
        with pytest.raises(StoreUnavailable, match="Postgres"):
            await store.read("1001")
        await store.close()

    asyncio.run(scenario())


def test_an_append_to_an_unknown_execution_is_a_conflict(database):
    async def scenario():
        store = open_store(database)
        with pytest.raises(VersionConflict):
            await store.append(make_append("1001", 4, BODIES[1]))
        await store.close()

    asyncio.run(scenario())


# ── partitions and retention ────────────────────────────────────────────────────────────

WEEK_SECONDS = 7 * 24 * 3600.0


def partitions(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'noetl_log'::regclass ORDER BY 1"
        )
        return [row[0] for row in rows]


def test_an_older_log_is_partitioned_while_servers_append_to_it(database):
    async def scenario():
        older = open_store(database)
        older.database.migrate("events", SCHEMA[:1])
        async with older.database.connection() as connection:
            for columns in SCHEMA[2:]:  # that this version writes
                await connection.execute(columns)
        began = str(number_at(time.time()))
        await older.append(make_append(began, 0, *BODIES[:2], key="k"))
        await older.append(make_append("1001", 0, BODIES[0]))

        appending = [
            asyncio.create_task(older.append(make_append(str(int(began) + n), 0, BODIES[0]))) for n in range(1, 50)
        ]
        newer = open_store(database)
        await newer.append(make_append(began, 2, BODIES[2]))
        await asyncio.gather(*appending)
        await older.append(make_append(began, 3, BODIES[3]))

        assert partitions(database) == ["noetl_log_first", "noetl_log_other"]
        for store in (older, newer):
            assert [each.seq for each in await store.read(began)] == [1, 2, 3, 4]
            assert [each.seq for each in await store.read("1001")] == [1]
            assert (await store.counts()) == {"running": 51}
        with pytest.raises(StoreUnavailable, match="restart it with the NoETL version that migrated them"):
            await older.check()
        await newer.check()
        for store in (older, newer):
            await store.close()

    asyncio.run(scenario())


def test_partitions_of_past_weeks_are_dropped_unless_an_execution_still_runs(database):
    async def scenario():
        store = open_store(database)
        now = time.time()
        await store.tidy(now)
        made = partitions(database)
        assert len(made) == 2 + 3, (
            "the first one goes to the week after next, and there are four weeks ahead of this one"
        )
        later = now + 3 * WEEK_SECONDS
        ids = [str(number_at(later)), str(number_at(later) + 1), str(number_at(later) + WEEK)]
        ended = {"status": "success", "ended_at": later}
        await store.append(make_append(ids[0], 0, *BODIES[:2], **ended))
        await store.append(make_append(ids[1], 0, BODIES[0]))
        await store.append(make_append(ids[2], 0, *BODIES[:2], **ended))

        end = later + 4 * WEEK_SECONDS
        await store.drop(await store.expired(end))
        assert await store.tidy(end) >= 2
        left = partitions(database)
        assert "noetl_log_first" not in left
        assert await store.read(ids[1]) != [], "it has not ended"
        with psycopg.connect(database) as connection:
            rows = connection.execute("SELECT execution FROM noetl_log ORDER BY 1").fetchall()
        assert [str(row[0]) for row in rows] == ids[:2], "a week goes as a whole, or not yet"
        await store.append(make_append(ids[1], 1, BODIES[1], **ended))
        await store.drop(await store.expired(end))
        assert await store.tidy(end) == 1
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT count(*) FROM noetl_log").fetchone() == (0,)
        await store.close()

    asyncio.run(scenario())


def test_the_partition_of_this_week_is_emptied_when_it_has_no_executions_left(database):
    async def scenario():
        store = open_store(database)
        now = time.time()
        first, last = str(number_at(now)), str(number_at(now) + 1)
        ended = {"status": "success", "ended_at": now - 1}
        for execution_id in (first, last):
            await store.append(make_append(execution_id, 0, *BODIES[:2], **ended))
        sizes = []
        for execution_id in (first, last):
            await store.drop([execution_id])
            assert await store.tidy(now) == 0
            sizes.append(await store.database.row("SELECT pg_relation_size('noetl_log_first')"))
        await store.append(make_append(first, 0, BODIES[0]))
        assert [each.seq for each in await store.read(first)] == [1]
        await store.close()
        assert sizes[0][0] > 0 and sizes[1][0] == 0

    asyncio.run(scenario())


def test_a_partition_that_is_being_read_does_not_stop_appends(database):
    async def scenario():
        store = open_store(database)
        now = time.time()
        await store.tidy(now)
        partition, later = partitions(database)[0], now + 8 * WEEK_SECONDS
        reader = await asyncpg.connect(database)
        transaction = reader.transaction()
        await transaction.start()
        await reader.fetch(f"SELECT 1 FROM {partition}")
        tidying = asyncio.create_task(store.tidy(later))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass"
        watcher = await asyncpg.connect(database)
        try:
            for number in range(2):  # the drop waits, gives up for the appends behind it, and waits again
                for expected in (1, 0):
                    while bool(await watcher.fetchval(waiting, partition)) is not bool(expected):
                        assert not tidying.done(), tidying
                        await asyncio.sleep(0.01)
                await store.append(make_append(str(number_at(now) + number), 0, BODIES[0]))
        finally:
            await transaction.rollback()
        assert await tidying >= 1
        assert partition not in partitions(database)
        for each in (reader, watcher, store):
            await each.close()

    asyncio.run(scenario())


def test_ids_outside_of_all_partitions_are_stored_in_the_default_partition(database):
    async def scenario():
        store = open_store(database)
        far = time.time() + 500 * WEEK_SECONDS
        stray = str(number_at(far))
        await store.append(make_append(stray, 0, *BODIES[:2], status="success", ended_at=far))
        await store.tidy(far)
        await store.append(make_append(str(int(stray) + 1), 0, BODIES[0]))
        assert [each.seq for each in await store.read(stray)] == [1, 2]
        await store.drop(await store.expired(far + 1))
        with psycopg.connect(database) as connection:
            rows = connection.execute("SELECT execution FROM noetl_log_other").fetchall()
        assert rows == [(int(stray) + 1,)]
        await store.close()

    asyncio.run(scenario())


def test_migrations_registered_after_the_first_use_are_run(database):
    async def scenario():
        opened = PostgresDatabase(database)
        opened.migrate("early", ("CREATE TABLE early(x int)",))
        assert await opened.fetch("SELECT * FROM early") == []
        opened.migrate("late", ("CREATE TABLE late(x int)",))
        assert await opened.fetch("SELECT * FROM late") == []
        await opened.close()

    asyncio.run(scenario())
