"""Writes the locked dependencies as a CycloneDX document (JSON), which vulnerability scanners read.

python deploy/sbom.py requirements.lock > sbom.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]+))?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def components(lock: str) -> list[dict[str, Any]]:
    """One component for each locked distribution, with its hashes."""
    found: list[dict[str, Any]] = []
    for line in lock.splitlines():
        requirement = _REQUIREMENT.match(line)
        if requirement:
            name, version, marker = requirement.groups()
            normal = re.sub(r"[-_.]+", "-", name).lower()
            purl = f"pkg:pypi/{normal}@{version}"
            found.append(
                {"type": "library", "name": normal, "version": version, "purl": purl, "bom-ref": purl, "hashes": []}
            )
            if marker:
                found[-1]["properties"] = [{"name": "marker", "value": marker.strip()}]
        elif found:
            found[-1]["hashes"] += [{"alg": "SHA-256", "content": digest} for digest in _HASH.findall(line)]
    return found


def document(lock: str) -> dict[str, Any]:
    """The CycloneDX document of a lock file; it is the same for the same lock file."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "noetl-engine"}},
        "components": components(lock),
    }


if __name__ == "__main__":
    print(json.dumps(document(Path(sys.argv[1]).read_text(encoding="utf-8")), indent=2))
