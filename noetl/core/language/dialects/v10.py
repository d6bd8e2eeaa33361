"""Keys of the v10 dialect: `args`, `set_ctx`, `set_iter`, `next.arcs[].args`, labelled tasks.

v10 playbooks run unchanged. Each key has a warning that names its canonical form.
"""

from __future__ import annotations

from noetl.core.language.source.node_reader import ReplacedKey

KEYS: dict[tuple[str, str], ReplacedKey] = {
    ("step", "args"): ReplacedKey("v10-args", "`args` of a step is v10 syntax", "write `input`"),
    ("task", "args"): ReplacedKey("v10-args", "`args` of a task is v10 syntax", "write `input`"),
    ("block", "args"): ReplacedKey("v10-args", "`args` of a block is v10 syntax", "write `input`"),
    ("arc", "args"): ReplacedKey(
        "v10-arc-args",
        "`args` of an arc is v10 syntax",
        "write `set: {ctx.<name>: ...}` and read it in the target's `input`",
    ),
    ("step", "set_ctx"): ReplacedKey("v10-set-ctx", "`set_ctx` is v10 syntax", "write `set: {ctx.<name>: ...}`"),
    ("directive", "set_ctx"): ReplacedKey("v10-set-ctx", "`set_ctx` is v10 syntax", "write `set: {ctx.<name>: ...}`"),
    ("directive", "set_iter"): ReplacedKey(
        "v10-set-iter", "`set_iter` is v10 syntax", "write `set: {iter.<name>: ...}`"
    ),
    ("directive", "set_step"): ReplacedKey(
        "v10-set-iter", "`set_step` is v10 syntax", "write `set: {step.<name>: ...}`"
    ),
    ("task", "label"): ReplacedKey(
        "v10-labelled-task", "a task under its label is v10 syntax", "write `- name: ...` beside `kind`"
    ),
}
