"""A setting is taken from the first source that has it, and its origin is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.settings import TABLE, BadSetting, Loaded, load, read_env_file, shares


@pytest.fixture
def places(tmp_path: Path):
    """Load with an empty environment and only the files that the test writes."""
    folder = tmp_path / "work"
    config = tmp_path / "config" / "noetl"
    folder.mkdir()
    config.mkdir(parents=True)

    def load_here(*, flags=None, environ=None, env_file: str = "", project: str | bytes = "", user: str = "") -> Loaded:
        if env_file:
            (folder / ".env").write_text(env_file)
        if project:
            (folder / "noetl.toml").write_bytes(project.encode() if isinstance(project, str) else project)
        if user:
            (config / "config.toml").write_text(user)
        around = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), **(environ or {})}
        return load(flags, environ=around, folder=folder)

    return load_here


def test_each_source_overrides_the_ones_after_it(places):
    user = "slots = 1"
    assert places(user=user).settings.slots == 1
    assert places(user=user, project="slots = 2").settings.slots == 2
    assert places(env_file="NOETL_SLOTS=3").settings.slots == 3
    assert places(environ={"NOETL_SLOTS": "4"}).settings.slots == 4
    assert places(environ={"NOETL_SLOTS": "4"}, flags={"slots": 5}).settings.slots == 5


def test_the_origin_names_the_source(places, tmp_path):
    assert places().origins["slots"] == "default"
    assert str(tmp_path / "config" / "noetl" / "config.toml") in places(user="slots = 1").origins["slots"]
    assert places(project="slots = 2").origins["slots"] == "noetl.toml (slots)"
    assert places(env_file="NOETL_SLOTS=3").origins["slots"] == ".env (NOETL_SLOTS)"
    assert places(environ={"NOETL_SLOTS": "4"}).origins["slots"] == "environment NOETL_SLOTS"
    assert places(flags={"slots": 5}).origins["slots"] == "flag --slots"


def test_a_flag_that_is_not_given_overrides_nothing(places):
    assert places(flags={"slots": None}, environ={"NOETL_SLOTS": "4"}).settings.slots == 4


def test_an_empty_variable_counts_as_not_set(places):
    assert places(environ={"NOETL_SLOTS": " "}).origins["slots"] == "default"


def test_home_is_the_platforms_data_folder_and_contains_the_store(places, tmp_path):
    settings = places().settings
    assert settings.home == tmp_path / ".local" / "share" / "noetl"
    assert settings.store == f"sqlite://{settings.home}/noetl.db"
    moved = places(environ={"NOETL_HOME": str(tmp_path / "elsewhere")}).settings
    assert moved.store == f"sqlite://{tmp_path}/elsewhere/noetl.db"


def test_a_dotted_name_is_a_table_in_files_and_an_underscore_elsewhere(places):
    assert places(project='[server]\nurl = "http://one:8080/"').settings.server_url == "http://one:8080"
    assert places(environ={"NOETL_SERVER_URL": "https://two"}).settings.server_url == "https://two"


def test_an_unknown_key_is_a_warning_with_a_suggestion(places):
    loaded = places(project='slot = 3\n[server]\nurll = "http://x"\n[nonsense]\nanything = 1')
    assert len(loaded.warnings) == 3
    assert "unknown setting slot; did you mean slots?" in loaded.warnings[0]
    assert "unknown setting server.urll; did you mean server.url?" in loaded.warnings[1]
    assert "unknown setting nonsense.anything" in loaded.warnings[2]


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_bad_value_names_the_setting_the_value_and_the_source(places, value):
    with pytest.raises(BadSetting) as refused:
        places(environ={"NOETL_SLOTS": value})
    message = str(refused.value)
    assert "slots" in message
    assert value in message
    assert "whole number" in message
    assert "environment NOETL_SLOTS" in message


@pytest.mark.parametrize(("text", "value"), [("on", True), ("TRUE", True), ("1", True), ("off", False), ("0", False)])
def test_a_boolean_setting_is_on_or_off(places, text, value):
    assert places(environ={"NOETL_SQLITE_WAL_PREALLOCATE": text}).settings.sqlite_wal_preallocate is value
    assert places(project="[sqlite]\nwal_preallocate = true").settings.sqlite_wal_preallocate is True
    with pytest.raises(
        BadSetting, match=r"invalid value 'maybe' for setting sqlite\.wal_preallocate: must be on or off"
    ):
        places(environ={"NOETL_SQLITE_WAL_PREALLOCATE": "maybe"})


@pytest.mark.parametrize("text", ["slots = true", 'slots = "x"', "slots = [1]", "slots = 1.5"])
def test_a_toml_value_of_the_wrong_kind_is_an_error(places, text):
    with pytest.raises(BadSetting, match=r"noetl\.toml \(slots\)"):
        places(project=text)


def test_a_table_where_a_value_belongs_is_a_warning(places):
    assert "unknown setting slots.x" in places(project="[slots]\nx = 1").warnings[0]


def test_a_bad_secret_is_not_shown(places):
    with pytest.raises(BadSetting) as refused:
        places(project="token = 123456789")
    assert "123456789" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"), [("slots = = 3", "not valid TOML"), (b"\xff\xfe\x00", "not UTF-8")], ids=["broken", "binary"]
)
def test_a_broken_file_is_one_clear_error(places, content, words):
    with pytest.raises(BadSetting, match=words):
        places(project=content)


def test_the_env_file_is_read_as_shells_write_it(tmp_path):
    file = tmp_path / ".env"
    file.write_text(
        "# comment\n\nexport NOETL_A=1\nNOETL_B='two words' # why\nNOETL_C=three # why\n"
        'NOETL_D="x#y"\nNOETL_E=\nOTHER=1\nsomething else entirely\n'
    )
    assert read_env_file(file) == {
        "NOETL_A": "1",
        "NOETL_B": "two words",
        "NOETL_C": "three",
        "NOETL_D": "x#y",
        "NOETL_E": "",
    }


@pytest.mark.parametrize("line", ["NOETL_SLOTS", "NOETL_SLOTS='4"])
def test_a_malformed_noetl_line_in_the_env_file_is_reported_with_its_number(places, line):
    with pytest.raises(BadSetting, match=r"\.env:1"):
        places(env_file=line)


def test_a_folder_called_env_is_not_a_settings_file(places, tmp_path):
    (tmp_path / "work" / ".env").mkdir()
    assert places().origins["slots"] == "default"


def test_settings_are_immutable(places):
    with pytest.raises(AttributeError):
        places().settings.slots = 3


def test_every_setting_is_documented_and_has_an_attribute(places):
    loaded = places()
    for setting in TABLE:
        assert setting.doc
        assert hasattr(loaded.settings, setting.attribute)
    assert set(loaded.origins) == {setting.attribute for setting in TABLE}


@pytest.mark.parametrize(
    ("pools", "slots", "given"),
    [
        ("default", 8, {"default": 8}),
        ("default=3,reports=1", 8, {"default": 6, "reports": 2}),
        ("a=3, b=1", 2, {"a": 1, "b": 1}),
        ("a,b,c", 8, {"a": 3, "b": 3, "c": 2}),
        ("a=100,b=1", 4, {"a": 3, "b": 1}),
    ],
)
def test_slots_are_shared_between_pools_by_weight(pools, slots, given):
    assert shares(pools, slots) == given


@pytest.mark.parametrize("pools", ["a=0", "a=-1", "a=x", "=3", "a,,b", "a=1,a=2"])
def test_invalid_pools_are_rejected_with_the_rule(pools, tmp_path):
    with pytest.raises(BadSetting, match="names with weights"):
        load({"worker_pool": pools}, environ={"HOME": str(tmp_path)}, folder=tmp_path)
