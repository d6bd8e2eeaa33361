"""The v10 surface: `args`, `outcome`, `set_ctx`, `set_iter`, `next.arcs[].args`, labelled tasks.

It runs as it is. These are its words, each with the canonical form that the warning names.
"""

from __future__ import annotations

from noetl.core.language.source.node_reader import Word

WORDS: dict[tuple[str, str], Word] = {
    ("step", "args"): Word("v10-args", "`args` of a step is v10 syntax", "write `input`"),
    ("task", "args"): Word("v10-args", "`args` of a task is v10 syntax", "write `input`"),
    ("block", "args"): Word("v10-args", "`args` of a block is v10 syntax", "write `input`"),
    ("arc", "args"): Word(
        "v10-arc-args",
        "`args` of an arc is v10 syntax",
        "write `set: {ctx.<name>: ...}` and read it in the target's `input`",
    ),
    ("directive", "set_ctx"): Word("v10-set-ctx", "`set_ctx` is v10 syntax", "write `set: {ctx.<name>: ...}`"),
    ("directive", "set_iter"): Word("v10-set-iter", "`set_iter` is v10 syntax", "write `set: {iter.<name>: ...}`"),
    ("task", "label"): Word("v10-labelled-task", "a task under its label is v10 syntax", "write `- name: ...` beside `kind`"),
}
