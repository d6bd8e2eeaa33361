"""Moving rows from one place to others, in chunks: what kind `transfer` does.

`plan` reads what is asked for, `sources` give Arrow batches, `chunks` cuts them, `targets` take them, and
`engine` runs the targets of a chunk side by side while the next chunk is being fetched. `pipe` is the short
cut from Postgres to Postgres, where rows need not be looked at.
"""
