"""The catalog in SQLite or Postgres, in the database of the event log that refers to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from noetl.core.model.bundle import PREFIX, Bundle, file_digest
from noetl.errors import CorruptLog, RequestRefused
from noetl.storage.document_checksums import is_intact, with_checksum
from noetl.storage.ports.playbooks import Origin, StoredPlaybook
from noetl.storage.ports.sql import Schemas, SqlDatabase, like_pattern

SCHEMAS: Schemas = {
    "sqlite": (
        """
        CREATE TABLE playbook_texts(
          digest TEXT PRIMARY KEY,
          text TEXT NOT NULL,
          file TEXT NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE catalogue(
          path TEXT NOT NULL,
          version INTEGER NOT NULL,
          digest TEXT NOT NULL,
          registered_at REAL NOT NULL,
          PRIMARY KEY(path, version)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE bundle_files(digest TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
        CREATE TABLE bundles(digest TEXT PRIMARY KEY, manifest TEXT NOT NULL) WITHOUT ROWID;
        ALTER TABLE catalogue ADD COLUMN origin TEXT NOT NULL DEFAULT '{}'
        """,
        # When bundles and files were used: those of no playbook are deleted later.
        """
        ALTER TABLE bundle_files ADD COLUMN used_at REAL NOT NULL DEFAULT 0;
        ALTER TABLE bundles ADD COLUMN used_at REAL NOT NULL DEFAULT 0;
        UPDATE bundle_files SET used_at = strftime('%s', 'now');
        UPDATE bundles SET used_at = strftime('%s', 'now')
        """,
        """
        ALTER TABLE playbook_texts ADD COLUMN used_at REAL NOT NULL DEFAULT 0;
        UPDATE playbook_texts SET used_at = strftime('%s', 'now')
        """,
    ),
    "postgres": (
        """
        CREATE TABLE noetl_playbook_texts(digest text PRIMARY KEY, text text NOT NULL, file text NOT NULL);
        CREATE TABLE noetl_catalogue(
          path text COLLATE "C" NOT NULL,
          version int8 NOT NULL,
          digest text NOT NULL,
          registered_at float8 NOT NULL,
          PRIMARY KEY(path, version)
        )
        """,
        """
        CREATE TABLE noetl_bundle_files(digest text PRIMARY KEY, content bytea NOT NULL);
        CREATE TABLE noetl_bundles(digest text PRIMARY KEY, manifest text NOT NULL);
        ALTER TABLE noetl_catalogue ADD COLUMN origin text NOT NULL DEFAULT '{}'
        """,
        """
        ALTER TABLE noetl_bundle_files ADD COLUMN used_at float8 NOT NULL DEFAULT extract(epoch FROM now());
        ALTER TABLE noetl_bundles ADD COLUMN used_at float8 NOT NULL DEFAULT extract(epoch FROM now())
        """,
        "ALTER TABLE noetl_playbook_texts ADD COLUMN used_at float8 NOT NULL DEFAULT extract(epoch FROM now())",
    ),
}
# The clock of the database, so that servers whose clocks differ agree on ages.
NOW = {"sqlite": "CAST(strftime('%s', 'now') AS REAL)", "postgres": "extract(epoch FROM now())::float8"}
LISTED = {
    "sqlite": "digest IN (SELECT value FROM json_each($1))",
    "postgres": "digest = ANY(ARRAY(SELECT jsonb_array_elements_text($1::text::jsonb)))",
}
NAMED = {  # the files of the manifest of a bundle
    "sqlite": "SELECT f.value FROM bundles b, json_each(b.manifest, '$.files') f",
    "postgres": "SELECT f.value FROM noetl_bundles b, jsonb_each_text(b.manifest::jsonb -> 'files') f",
}

# A version without its text is found with an empty one, which does not match its digest.
_COLUMNS = "c.path, c.version, c.digest, coalesce(t.text, ''), c.registered_at, coalesce(t.file, ''), c.origin"


class SqlPlaybookStore:
    """`ports.PlaybookStore` in a database that other stores share."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._texts, self._catalog = f"{database.prefix}playbook_texts", f"{database.prefix}catalogue"
        self._files, self._bundles = f"{database.prefix}bundle_files", f"{database.prefix}bundles"
        self._newest = f"c.version = (SELECT max(version) FROM {self._catalog} n WHERE n.path = {{}})"
        self._now, self._listed, self._named = (each[database.dialect] for each in (NOW, LISTED, NAMED))
        database.migrate("playbooks", SCHEMAS[database.dialect])

    async def save_text(self, digest: str, text: str, file: str) -> None:
        """Store the text of an execution's playbook, once per digest; it counts as used now."""
        if "\x00" in text:
            raise RequestRefused("a playbook must not contain a NUL character")
        await self._database.execute(
            f"INSERT INTO {self._texts}(digest, text, file, used_at) VALUES ($1, $2, $3, {self._now}) "
            f"ON CONFLICT (digest) DO UPDATE SET used_at = {self._now}",
            digest,
            text,
            file,
        )

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""
        row = await self._database.row(f"SELECT text, file FROM {self._texts} WHERE digest = $1", digest)
        return (row[0], row[1]) if row else None

    async def unregistered_texts(self, age: float, limit: int) -> Sequence[str]:
        """Texts of no version that were not used for `age` seconds, the oldest first."""
        rows = await self._database.fetch(
            f"SELECT digest FROM {self._texts} WHERE used_at <= {self._now} - $1 AND digest NOT IN "
            f"(SELECT digest FROM {self._catalog}) ORDER BY used_at, digest LIMIT $2",
            float(age),
            limit,
        )
        return [row[0] for row in rows]

    async def keep_texts(self, digests: Sequence[str]) -> None:
        """Mark texts as used now."""
        listed = msgspec.json.encode(list(digests)).decode()
        await self._database.execute(f"UPDATE {self._texts} SET used_at = {self._now} WHERE {self._listed}", listed)

    async def delete_texts(self, digests: Sequence[str], age: float) -> int:
        """Delete these texts if they were not used for `age` seconds, which the statement compares."""
        statement = f"DELETE FROM {self._texts} WHERE {self._listed} AND used_at <= {self._now} - $2"
        return await self._database.execute(statement, msgspec.json.encode(list(digests)).decode(), float(age))

    async def register(self, playbook: StoredPlaybook) -> StoredPlaybook:
        """Add a version of a path; an unchanged digest is not a new version."""
        path, digest = playbook.path, playbook.digest
        await self.save_text(digest, playbook.text, playbook.file)
        while True:
            newest = await self.find(path)
            if newest is not None and newest.digest == digest:
                return newest
            version = newest.version + 1 if newest is not None else 1
            added = await self._database.execute(
                f"INSERT INTO {self._catalog}(path, version, digest, registered_at, origin) "
                "VALUES ($1, $2, $3, $4, $5) ON CONFLICT (path, version) DO NOTHING",
                path,
                version,
                digest,
                playbook.registered_at,
                with_checksum(
                    msgspec.json.encode(playbook.origin), path, version, digest, playbook.registered_at
                ).decode(),
            )
            if added:  # else another process has just added this version
                return msgspec.structs.replace(playbook, version=version)

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """One version of a path; None is the newest."""
        if version is None:
            found = await self._select(f"c.path = $1 AND {self._newest.format('$1')}", path)
        else:
            found = await self._select("c.path = $1 AND c.version = $2", path, version)
        return found[0] if found else None

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path before `before`, newest first."""
        return await self._select(
            "c.path = $1 AND c.version < $2 ORDER BY c.version DESC LIMIT $3", path, before or 2**62, limit
        )

    async def _select(self, where: str, *values: object) -> list[StoredPlaybook]:
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM {self._catalog} c LEFT JOIN {self._texts} t ON t.digest = c.digest WHERE {where}",
            *values,
        )
        return [_stored(*row) for row in rows]

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path, by path. The index is read once per path, not once per version."""
        following = f"FROM {self._catalog} n WHERE n.path > {{}} ORDER BY n.path LIMIT 1"
        rows = await self._database.fetch(
            f"WITH RECURSIVE paths(path) AS (SELECT * FROM (SELECT n.path {following.format('$1')}) AS first UNION ALL "
            f"SELECT (SELECT n.path {following.format('p.path')}) FROM paths p WHERE p.path IS NOT NULL), "
            f"found(path) AS (SELECT path FROM paths WHERE path IS NOT NULL AND path {self._database.like} $2 "
            f"ESCAPE '\\' LIMIT $3) SELECT {_COLUMNS} FROM found f JOIN {self._catalog} c ON c.path = f.path "
            f"AND {self._newest.format('f.path')} LEFT JOIN {self._texts} t ON t.digest = c.digest ORDER BY c.path",
            after or "",
            like_pattern(search or ""),
            limit,
        )
        return [_stored(*row) for row in rows]

    async def save_files(self, contents: Mapping[str, bytes]) -> None:
        """Store files by the digest of their content."""
        for digest, content in contents.items():
            await self._database.execute(
                f"INSERT INTO {self._files}(digest, content, used_at) VALUES ($1, $2, {self._now}) "
                f"ON CONFLICT (digest) DO UPDATE SET used_at = {self._now}",
                digest,
                content,
            )

    async def file(self, digest: str) -> bytes | None:
        """The content of a file."""
        row = await self._database.row(f"SELECT content FROM {self._files} WHERE digest = $1", digest)
        if row and file_digest(bytes(row[0])) != digest:
            raise CorruptLog(f"the file {digest} of a bundle is damaged; restore a backup")
        return bytes(row[0]) if row else None

    async def absent_files(self, digests: Sequence[str]) -> Sequence[str]:
        """Which of these files are not stored; the others count as used now."""
        listed = msgspec.json.encode(list(dict.fromkeys(digests))).decode()
        # First: a file that exists after this is not deleted for some time.
        await self._database.execute(f"UPDATE {self._files} SET used_at = {self._now} WHERE {self._listed}", listed)
        rows = await self._database.fetch(f"SELECT digest FROM {self._files} WHERE {self._listed}", listed)
        stored = {row[0] for row in rows}
        return [each for each in dict.fromkeys(digests) if each not in stored]

    async def save_bundle(self, bundle: Bundle) -> None:
        """Store a bundle under its digest; it counts as used now."""
        await self._database.execute(
            f"INSERT INTO {self._bundles}(digest, manifest, used_at) VALUES ($1, $2, {self._now}) "
            f"ON CONFLICT (digest) DO UPDATE SET used_at = {self._now}",
            bundle.digest,
            msgspec.json.encode(bundle).decode(),
        )

    async def unregistered_bundles(self, age: float, limit: int) -> Sequence[tuple[str, Sequence[str]]]:
        """Bundles that no version is part of and that were not used for `age` seconds, with their texts."""
        of_bundle = f"t.file LIKE '{PREFIX}' || b.digest || '/%'"
        rows = await self._database.fetch(
            f"SELECT b.digest FROM {self._bundles} b WHERE b.used_at <= {self._now} - $1 AND NOT EXISTS "
            f"(SELECT 1 FROM {self._texts} t JOIN {self._catalog} c ON c.digest = t.digest WHERE {of_bundle}) "
            "ORDER BY b.used_at, b.digest LIMIT $2",
            float(age),
            limit,
        )
        texts = f"SELECT t.digest FROM {self._texts} t WHERE t.file LIKE $1"
        return [
            (digest, [row[0] for row in await self._database.fetch(texts, f"{PREFIX}{digest}/%")]) for (digest,) in rows
        ]

    async def keep_bundle(self, digest: str) -> None:
        """Mark a bundle as used now."""
        await self._database.execute(f"UPDATE {self._bundles} SET used_at = {self._now} WHERE digest = $1", digest)

    async def delete_bundles(self, digests: Sequence[str], age: float) -> int:
        """Delete these bundles if they were not used for `age` seconds, and unused files of no bundle.

        The age is compared by the statement that deletes: a bundle or file that is used at the same time stays, or is
        reported as absent and sent again."""
        unused = f"used_at <= {self._now} - $2"
        listed = msgspec.json.encode(list(digests)).decode()
        statement = f"DELETE FROM {self._bundles} WHERE {self._listed} AND {unused}"
        count = await self._database.execute(statement, listed, float(age))
        statement = f"DELETE FROM {self._files} WHERE digest NOT IN ({self._named}) AND used_at <= {self._now} - $1"
        return count + await self._database.execute(statement, float(age))

    async def bundle(self, digest: str) -> Bundle | None:
        """A stored bundle."""
        row = await self._database.row(f"SELECT manifest FROM {self._bundles} WHERE digest = $1", digest)
        found = decoded_bundle(digest, row[0]) if row else None
        if row and found is None:
            raise CorruptLog(f"the bundle {digest} is damaged; apply the project again, or restore a backup")
        return found


def text_digest(text: str, file: str) -> str:
    """The digest of a text with its file, under which it is stored."""
    return hashlib.sha256(f"{file}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def decoded_bundle(digest: str, manifest: str) -> Bundle | None:
    """A stored bundle; None if it is damaged."""
    try:
        found = msgspec.json.decode(manifest, type=Bundle)
    except msgspec.MsgspecError:
        return None
    return found if found.digest == digest else None


def _stored(path: str, version: int, digest: str, text: str, at: float, file: str, origin: str) -> StoredPlaybook:
    known = isinstance(origin, str) and is_intact(origin.encode(), path, version, digest, at)
    try:
        found = msgspec.json.decode(origin, type=Origin) if known else Origin()  # it is informative only, like the time
    except msgspec.ValidationError:
        found = Origin()
    return StoredPlaybook(path, version, digest, text, at if isinstance(at, int | float) else 0.0, file, found)
