"""Tables of Delta Lake and Iceberg as targets of transfers."""

from __future__ import annotations

from noetl.tool import Field, TargetSpec, auth_field, lazy

AUTH = auth_field(
    "The object store: a credential with `access_key_id`, `secret_access_key`, `region`, `endpoint`; default: the "
    "provider's own chain.",
    required=False,
)
PARTITION_BY = Field(
    "any",
    "Columns that divide the table. With `mode: replace`, the partitions of the rows are replaced; the others stay.",
    accepts=("string", "list"),
    each=Field("string", "A column."),
)
explain = lazy("noetl_lakehouse.failures:explain")

DELTA = TargetSpec(
    kind="delta",
    doc="A Delta Lake table in a folder or bucket, written as one version: readers see all rows of a transfer or none. "
    "`replace` replaces the table, or with `partition_by` the partitions of the rows.",
    open=lazy("noetl_lakehouse.delta:DeltaTarget"),
    explain=explain,
    fields={
        "uri": Field(
            "string", "The folder or address of the table: `lake/orders`, `s3://lake/orders`.", aliases=("path",)
        ),
        "auth": AUTH,
        "partition_by": PARTITION_BY,
    },
    modes=("append", "replace"),
    place="uri",
    example="targets:\n  - {kind: delta, uri: s3://lake/orders, auth: lake, partition_by: [day], mode: replace}",
)
ICEBERG = TargetSpec(
    kind="iceberg",
    doc="An Iceberg table in a catalog, written as one commit: readers see all rows of a transfer or none. `replace` "
    "replaces the table, or with `partition_by` the partitions of the rows.",
    open=lazy("noetl_lakehouse.iceberg:IcebergTarget"),
    explain=explain,
    fields={
        "catalog": Field(
            "mapping",
            "Properties of the catalog: `type` (`sql`, `rest`, `glue`, `hive`), `uri`, `warehouse`; `name` "
            "(`default`).",
            required=True,
        ),
        "table": Field("string", "`namespace.table`; both are created if they are missing."),
        "auth": AUTH,
        "partition_by": PARTITION_BY,
    },
    modes=("append", "replace"),
    example="targets:\n  - kind: iceberg\n    catalog: {type: rest, uri: https://catalog.example.com, warehouse: lake}"
    "\n    table: shop.orders\n    partition_by: [day]\n    mode: replace",
)
