"""The contract of `ports.CredentialStore` for stores that encrypt, as tests: a back end subclasses the suite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from noetl.errors import RequestRefused, SecretUnavailable
from noetl.secrets.master_key import KeyRing

SECRET = "canary-5f2b1c-secret"
OLD, NEW = b"o" * 32, b"n" * 32
Column = Literal["wrapped", "sealed"]


class CredentialStoreSuite:
    """Credentials are encrypted, bound to their names, and readable by all processes with the keys."""

    async def open_store(self, place: Path, ring: KeyRing | Callable[[], KeyRing]) -> Any:
        """Open the store in this folder; several stores of one test share their credentials."""
        raise LookupError("the suite's subclass says how to open its store")

    async def column(self, place: Path, name: str, column: Column) -> bytes:
        """Read a column of a row directly from the database."""
        raise LookupError("the suite's subclass says how to look past its store")

    async def overwrite(self, place: Path, name: str, column: Column, value: bytes) -> None:
        """Change a row directly in the database."""
        raise LookupError("the suite's subclass says how to reach past its store")

    async def let_go(self, store: Any) -> None:
        """Close a store and what is below it."""
        await store.close()

    def run(self, place: Path, scenario: Callable[[Any], Awaitable[None]], *keys: bytes) -> None:
        """Open a store with these keys and run the scenario with it."""

        async def whole() -> None:
            store = await self.open_store(place, KeyRing(keys or (OLD,)))
            try:
                await scenario(store)
            finally:
                await self.let_go(store)

        asyncio.run(whole())

    def test_credentials_are_stored_listed_replaced_and_deleted(self, tmp_path: Path) -> None:
        async def scenario(store: Any) -> None:
            assert await store.get("pg") is None
            await store.set("pg", "postgres", {"host": "h", "password": SECRET, "port": 5432})
            await store.set("api", "bearer", {"token": "t"})
            assert await store.get("pg") == {"host": "h", "password": SECRET, "port": 5432}
            assert await store.list() == [("api", "bearer"), ("pg", "postgres")]
            await store.set("pg", "other", {"password": "new"})
            assert await store.get("pg") == {"password": "new"}
            assert await store.list() == [("api", "bearer"), ("pg", "other")]
            assert await store.delete("pg") and not await store.delete("pg")
            assert await store.get("pg") is None

        self.run(tmp_path, scenario)

    def test_rows_are_encrypted_with_fresh_keys(self, tmp_path: Path) -> None:
        async def scenario(store: Any) -> None:
            for name in ("a", "b"):
                await store.set(name, "t", {"v": SECRET})
            for column in ("wrapped", "sealed"):
                first, second = [await self.column(tmp_path, name, column) for name in ("a", "b")]
                assert first != second
                assert SECRET.encode() not in first + second

        self.run(tmp_path, scenario)

    def test_a_row_is_bound_to_its_name(self, tmp_path: Path) -> None:
        async def scenario(store: Any) -> None:
            await store.set("mine", "t", {"v": "harmless"})
            await store.set("theirs", "t", {"v": SECRET})
            for column in ("wrapped", "sealed"):
                await self.overwrite(tmp_path, "mine", column, await self.column(tmp_path, "theirs", column))
            with pytest.raises(SecretUnavailable, match="damaged"):
                await store.get("mine")
            assert await store.get("theirs") == {"v": SECRET}

        self.run(tmp_path, scenario)

    @pytest.mark.parametrize("column", ["wrapped", "sealed"])
    def test_a_damaged_row_is_detected(self, tmp_path: Path, column: Column) -> None:
        async def scenario(store: Any) -> None:
            await store.set("x", "t", {"v": SECRET})
            data = await self.column(tmp_path, "x", column)
            await self.overwrite(tmp_path, "x", column, bytes([*data[:-1], data[-1] ^ 1]))
            with pytest.raises(SecretUnavailable, match="damaged"):
                await store.get("x")

        self.run(tmp_path, scenario)

    def test_a_missing_master_key_is_named(self, tmp_path: Path) -> None:
        async def fill(store: Any) -> None:
            await store.set("x", "t", {"v": 1})

        async def read(store: Any) -> None:
            with pytest.raises(SecretUnavailable, match=r"with the master key [0-9a-f]{16}, which this installation"):
                await store.get("x")

        self.run(tmp_path, fill, OLD)
        self.run(tmp_path, read, NEW)

    def test_rotating_the_master_key_keeps_all_credentials(self, tmp_path: Path) -> None:
        async def fill(store: Any) -> None:
            for number in range(20):
                await store.set(f"c{number}", "t", {"v": number})
            assert await store.rewrap(KeyRing([NEW, OLD])) == 20
            await store.set("new", "t", {"v": "n"})

        async def later(store: Any) -> None:
            assert [await store.get(f"c{n}") for n in range(20)] == [{"v": n} for n in range(20)]
            assert await store.get("new") == {"v": "n"}
            assert await store.rewrap(KeyRing([NEW])) == 0

        self.run(tmp_path, fill, OLD)
        self.run(tmp_path, later, NEW)

    def test_a_wrong_master_key_changes_nothing(self, tmp_path: Path) -> None:
        async def scenario(store: Any) -> None:
            await store.set("a", "t", {"v": 1})
            await store.set("b", "t", {"v": 2})
            with pytest.raises(RequestRefused, match='credential "a" cannot be decrypted'):
                await store.rewrap(KeyRing([NEW, b"x" * 32]))
            assert [await store.get(name) for name in ("a", "b")] == [{"v": 1}, {"v": 2}]

        self.run(tmp_path, scenario)

    def test_other_processes_continue_during_key_rotation(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            keys = [[OLD], [OLD]]  # the keys of two servers
            first, second = [
                await self.open_store(tmp_path, lambda number=number: KeyRing(keys[number]))  # type: ignore[misc]
                for number in range(2)
            ]
            try:
                await first.set("x", "t", {"v": SECRET})
                assert await second.get("x") == {"v": SECRET}
                keys[:] = [[NEW, OLD], [NEW, OLD]]
                assert await first.rewrap(KeyRing([NEW, OLD])) == 1
                assert await second.get("x") == {"v": SECRET}, "it reads its keys again"
                await second.set("y", "t", {"v": "z"})
                assert await first.get("y") == {"v": "z"}
            finally:
                for store in (first, second):
                    await self.let_go(store)

        asyncio.run(scenario())

    @pytest.mark.parametrize(("name", "data"), [("", {"a": 1}), ("x" * 201, {"a": 1}), ("x", {}), ("x", "text")])
    def test_an_invalid_credential_is_rejected(self, tmp_path: Path, name: str, data: Any) -> None:
        async def scenario(store: Any) -> None:
            with pytest.raises(RequestRefused):
                await store.set(name, "t", data)
            assert await store.list() == []

        self.run(tmp_path, scenario)
