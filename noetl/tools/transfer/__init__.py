"""Kind `transfer`: copies rows from a source to one or more targets, in chunks.

`transfer_plan` validates the fields, `sources` yield Arrow batches, `chunks` splits them, `targets` write them, and
`engine` writes a chunk to all targets concurrently while it fetches the next one. `pg_copy` is the fast path from
PostgreSQL to PostgreSQL, which does not decode the rows.
"""
