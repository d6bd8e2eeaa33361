"""Compares the locked dependencies with published advisories (OSV format) and fails if one is affected.

    python deploy/audit.py requirements.lock                        asks https://api.osv.dev
    python deploy/audit.py requirements.lock --advisories all.zip   without a network: an export of OSV for PyPI

Exit code: 0 no advisory applies, 1 one applies, 3 not checked (neither network nor export), which is no success.
`deploy/audit-accepted.json` lists advisories that do not apply here, each with a reason and its last day.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

sys.path.insert(0, str(Path(__file__).parent))
from sbom import components

OSV = "https://api.osv.dev/v1"
ACCEPTED = Path(__file__).with_name("audit-accepted.json")


def affects(advisory: dict[str, Any], name: str, version: str) -> bool:
    """Whether an advisory applies to a version of a distribution."""
    if advisory.get("withdrawn"):
        return False
    for affected in advisory.get("affected", ()):
        package = affected.get("package", {})
        if package.get("ecosystem") != "PyPI" or normal(package.get("name", "")) != name:
            continue
        if version in affected.get("versions", ()):
            return True
        for found in affected.get("ranges", ()):
            if found.get("type") == "ECOSYSTEM" and _in_range(found.get("events", ()), Version(version)):
                return True
    return False


def _in_range(events: Iterable[dict[str, str]], version: Version) -> bool:
    """Whether a version is between an event `introduced` and the next `fixed` or `last_affected`."""
    is_affected = False
    for event in events:
        try:
            if "introduced" in event and version >= Version(event["introduced"]):
                is_affected = True
            elif ("fixed" in event and version >= Version(event["fixed"])) or (
                "last_affected" in event and version > Version(event["last_affected"])
            ):
                is_affected = False
        except InvalidVersion:
            continue
    return is_affected


def normal(name: str) -> str:
    """The normalized name of a distribution."""
    return name.lower().replace("_", "-").replace(".", "-")


def read_advisories(path: Path) -> Iterator[dict[str, Any]]:
    """The advisories of an export: a zip file or a folder of JSON files."""
    if path.is_dir():
        yield from (json.loads(file.read_text(encoding="utf-8")) for file in sorted(path.rglob("*.json")))
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield json.loads(archive.read(name))


def exported(path: Path, parts: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """The advisories of an export that apply, as id, name and version; ValueError if it has none at all."""
    versions = {each["name"]: each["version"] for each in parts}
    advisory = None
    for advisory in read_advisories(path):
        for name in {normal(each.get("package", {}).get("name", "")) for each in advisory.get("affected", ())}:
            if name in versions and affects(advisory, name, versions[name]):
                yield advisory["id"], name, versions[name]
    if advisory is None:
        raise ValueError("it has no advisories")


def ask_osv(parts: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """The advisories that the service reports, as id, name and version."""
    queries = [{"package": {"ecosystem": "PyPI", "name": each["name"]}, "version": each["version"]} for each in parts]
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(f"{OSV}/querybatch", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        results = json.load(answer)["results"]
    for part, result in zip(parts, results, strict=True):
        for found in result.get("vulns", ()):
            yield found["id"], part["name"], part["version"]


def accepted(today: str, path: Path = ACCEPTED) -> dict[str, str]:
    """The accepted advisories whose date has not passed, with their reasons."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {each["id"]: each["reason"] for each in entries if each["until"] >= today}


def main(arguments: list[str] | None = None) -> int:
    """Audit a lock file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path)
    parser.add_argument(
        "--advisories", type=Path, help="an export of OSV for PyPI: a zip file, or a folder of JSON files"
    )
    given = parser.parse_args(arguments)
    parts = components(given.lock.read_text(encoding="utf-8"))
    try:
        if not parts:
            raise ValueError(f"{given.lock} names no dependencies")
        found = list(ask_osv(parts) if given.advisories is None else exported(given.advisories, parts))
    except (urllib.error.URLError, OSError, ValueError, zipfile.BadZipFile) as problem:
        source = f"{OSV} cannot be reached" if given.advisories is None else f"{given.advisories} cannot be used"
        print(f"not checked: {source} ({problem}); give an export with --advisories", file=sys.stderr)
        return 3
    known = accepted(datetime.datetime.now(datetime.UTC).date().isoformat())
    open_ = [each for each in found if each[0] not in known]
    for identifier, name, version in sorted(found):
        print(f"{identifier}  {name} {version}  {known.get(identifier, 'update it, or accept it with a reason')}")
    print(f"{len(parts)} dependencies, {len(found)} advisories apply, {len(found) - len(open_)} of them accepted")
    return 1 if open_ else 0


if __name__ == "__main__":
    sys.exit(main())
