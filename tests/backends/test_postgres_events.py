"""What only a store on a server must withstand: rivals, lost connections, damaged rows."""

import asyncio
from contextlib import suppress

import psycopg
import pytest

from noetl.backends.events.postgres import PostgresEventStore
from noetl.drivers.postgres_database import PostgresDatabase
from noetl.errors import CorruptLog, StoreUnavailable, VersionConflict
from noetl.model.events import CtxPatched, PlaybookProcessed
from noetl.testing.event_store_suite import BODIES, make_append


def open_store(dsn: str) -> PostgresEventStore:
    return PostgresEventStore(PostgresDatabase(dsn))


def test_of_rivals_on_two_servers_exactly_one_wins(database):
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


def test_keys_that_cross_between_servers_are_taken_once(database):
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


def test_connections_cut_again_and_again_lose_nothing_and_double_nothing(database):
    acknowledged: dict[str, int] = {}

    async def write(store: PostgresEventStore, execution_id: str) -> None:
        seq = 0
        while seq < 120:
            body = BODIES[0] if seq == 0 else CtxPatched(patch={"n": seq})
            try:
                await store.append(make_append(execution_id, seq, body))
                seq += 1
            except StoreUnavailable:
                with suppress(StoreUnavailable):
                    seq = max(seq, len(await store.read(execution_id)))
            acknowledged[execution_id] = seq

    async def scenario():
        store = open_store(database)
        writers = [asyncio.create_task(write(store, str(1000 + n))) for n in range(8)]
        everyone = asyncio.gather(*writers)
        cuts = 0
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as knife:
            while not everyone.done():
                await knife.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                cuts += 1
                await asyncio.sleep(0.2)
        await everyone
        assert cuts > 1
        for execution_id, seq in acknowledged.items():
            events = await store.read(execution_id)
            assert [each.seq for each in events] == list(range(1, seq + 1))
            assert [each.body.patch["n"] for each in events[1:]] == list(range(1, seq))
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
def test_damage_is_found_and_the_others_go_on(database, damage, where):
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


def test_a_tail_hears_of_another_servers_appends(database):
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


def test_a_server_that_cannot_be_reached_is_said_in_words():
    async def scenario():
        store = open_store("postgresql://nobody@127.0.0.1:1/none")
        with pytest.raises(StoreUnavailable, match="Postgres"):
            await store.read("1001")
        await store.close()

    asyncio.run(scenario())


def test_an_append_to_what_never_began_is_a_conflict(database):
    async def scenario():
        store = open_store(database)
        with pytest.raises(VersionConflict):
            await store.append(make_append("1001", 4, BODIES[1]))
        await store.close()

    asyncio.run(scenario())
