"""Profiles of the columns of a SELECT in DuckDB: missing and distinct values, range, mean, distribution."""

from __future__ import annotations

from typing import Any

from noetl.data.sql import quote_column

BARS = 20  # of the histogram of a column
TOP = 10  # most frequent values of a column


def column_profiles(db: Any, sql: str) -> list[dict[str, Any]]:
    """One profile for each column; `db` is a connection."""
    import pyarrow as pa

    schema = db.sql(f"SELECT * FROM ({sql}\n) LIMIT 0").to_arrow_reader(1).schema
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return [
        {
            "name": field.name,
            "type": str(field.type),
            **_profile(db, sql, quote_column(field.name), number=any(test(field.type) for test in numbers)),
        }
        for field in schema
    ]


def _profile(db: Any, sql: str, column: str, *, number: bool) -> dict[str, Any]:
    mean = f"avg(CAST({column} AS DOUBLE))" if number else "NULL"
    row = db.execute(
        f"SELECT count(*) - count({column}), count(DISTINCT {column}), CAST(min({column}) AS VARCHAR), "
        f"CAST(max({column}) AS VARCHAR), {mean} FROM ({sql}\n)"
    ).fetchone()
    found: dict[str, Any] = dict(zip(("missing", "distinct", "least", "most", "mean"), row, strict=True))
    if number and found["least"] is not None and found["distinct"] > TOP:
        return {**found, "histogram": _histogram(db, sql, f"CAST({column} AS DOUBLE)")}
    top = db.execute(
        f"SELECT CAST({column} AS VARCHAR), count(*) FROM ({sql}\n) WHERE {column} IS NOT NULL "
        f"GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {TOP}"
    ).fetchall()
    return {**found, "top": [{"value": value, "count": count} for value, count in top]}


def _histogram(db: Any, sql: str, value: str) -> dict[str, Any]:
    rows = db.execute(
        f"WITH v AS (SELECT {value} AS x FROM ({sql}\n) WHERE isfinite({value})), "
        "e AS (SELECT min(x) AS a, max(x) AS b FROM v) "
        f"SELECT least({BARS - 1}, CAST(floor((x - a) / greatest(b - a, 1e-300) * {BARS}) AS INTEGER)), count(*), "
        "min(a), min(b) FROM v, e GROUP BY 1 ORDER BY 1"
    ).fetchall()
    counts = [0] * BARS
    for bar, count, _, _ in rows:
        counts[bar] = count
    return {"from": rows[0][2], "to": rows[0][3], "counts": counts} if rows else {"counts": counts}
