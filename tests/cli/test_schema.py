"""`noetl schema`: register, list and show, and the schema of playbooks."""

from __future__ import annotations

import json


def test_schemas_are_registered_listed_and_shown(noetl, folder):
    file = folder / "orders.yaml"
    file.write_text("type: object\nrequired: [id]\n")
    assert noetl("schema", "list").err.startswith("no schemas")
    assert noetl("schema", "register", "orders", file).out == "orders/v1\n"
    assert noetl("schema", "register", "orders", file).out == "orders/v1\n"
    file.write_text(json.dumps({"type": "object", "required": ["id", "amount"]}))
    refused = noetl("schema", "register", "orders", file)
    assert refused.code != 0
    assert "amount: is required now" in refused.err
    assert noetl("schema", "register", "orders", file, "--compatible", "none", "--json").json["version"] == 2
    assert [(each["name"], each["version"]) for each in noetl("schema", "list", "--json").json] == [("orders", 2)]
    assert noetl("schema", "show", "orders/v1").json == {"type": "object", "required": ["id"]}
    assert noetl("schema", "show", "orders", "--json").json["versions"] == [2, 1]
    assert noetl("schema", "show", "nothing").code != 0


def test_a_file_that_is_not_a_schema_is_refused(noetl, folder):
    file = folder / "wrong.json"
    for text in ("[1]", "{", '{"type": "nope"}'):
        file.write_text(text)
        answer = noetl("schema", "register", "wrong", file)
        assert answer.code != 0
        assert "Traceback" not in answer.err


def test_without_a_subcommand_the_schema_of_playbooks_is_printed(noetl):
    assert "properties" in noetl("schema").json
