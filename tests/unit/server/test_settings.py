"""Settings of the server: which source wins, what is refused, and what is shown."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli.main import main
from fumehood.daemon.settings import HostSettings, load_host_settings
from fumehood.engine.settings import EngineSettings
from fumehood.errors import InvalidArgumentError
from fumehood.server.settings import ServerSettings, load_settings
from fumehood.setting_fields import (
    changed_settings,
    describe_settings,
    load_environment,
    logged_settings,
    print_settings,
)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "fumehood.toml"
    file.write_text('port = 1\npool_size = 2\nlog_level = "debug"\n')
    settings, sources = load_settings(
        {"port": "3", "pool_size": None}, environ={"FUMEHOOD_POOL_SIZE": "4"}, file=str(file)
    )
    assert (settings.port, settings.pool_size, settings.log_level, settings.host) == (
        3,
        4,
        "debug",
        "127.0.0.1",
    )
    assert [sources[name] for name in ("port", "pool_size", "log_level", "host")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "fumehood.toml"
    file.write_text('dialects = ["e2b"]\npublic_ports = true\n')
    settings, _ = load_settings({}, environ={"FUMEHOOD_CONFIG": str(file)})
    assert settings.dialects == ("e2b",)
    assert settings.public_ports is True


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", "x", "--port='x' is refused\n\nhint: --port takes a whole number from 0 to 65535"),
        ("port", "70000", "from 0 to 65535"),
        ("queue_seconds", "-1", "--queue-seconds takes a number from 0 to 3600"),
        ("queue_seconds", "soon", "--queue-seconds takes a number"),
        ("dialects", "e2b,klingon", "klingon"),
        (
            "isolation",
            "gvisor",
            "--isolation='gvisor' is refused\n\nhint: --isolation takes one of none, landlock-only",
        ),
        ("log_level", "loud", "debug, info, warning or error"),
        ("log_format", "xml", "console or json"),
        (
            "public_ports",
            "maybe",
            "--public-ports='maybe' is refused\n\nhint: --public-ports takes true or false",
        ),
    ],
)
def test_bad_values_are_named(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        load_settings({name: value}, environ={})

    assert words in str(refused.value)


def test_a_bad_value_is_reported_by_the_way_it_came(tmp_path: Path) -> None:
    """A variable that was set long since is easily forgotten; what nobody has given can be given by a flag."""
    file = tmp_path / "fumehood.toml"
    file.write_text("max_network = 'all'\n")
    here = {"environ": {}, "file": str(file)}

    with pytest.raises(
        InvalidArgumentError, match=r"^FUMEHOOD_POOL_SIZE=-1 is refused\n\nhint: FUMEHOOD_POOL_SIZE takes"
    ):
        load_settings({}, environ={"FUMEHOOD_POOL_SIZE": "-1"})

    with pytest.raises(
        InvalidArgumentError, match=r"fumehood\.toml: max_network takes none, pip, listed, internet"
    ):
        load_settings({}, **here)

    with pytest.raises(InvalidArgumentError, match="--token takes a secret of 16 characters") as refused:
        load_settings({"host": "0.0.0.0"}, environ={})

    assert refused.value.field == "--token"
    assert "needs a token of 16 characters or more: none is given" in refused.value.message


def test_what_only_the_start_finds_wrong_has_the_users_name_too(tmp_path: Path, capsys) -> None:
    """A state folder that others can enter: the flag that named it, and not the field of our settings."""
    tmp_path.chmod(0o755)
    assert main(["serve", "--port", "0", "--state-folder", str(tmp_path)]) == 64
    assert capsys.readouterr().err.startswith(f"fumehood: --state-folder={str(tmp_path)!r} is refused")


def test_unknown_settings_of_the_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "fumehood.toml"
    file.write_text("prot = 1\n")

    with pytest.raises(InvalidArgumentError, match=r"fumehood\.toml: setting='prot' is refused"):
        load_settings({}, environ={}, file=str(file))

    with pytest.raises(InvalidArgumentError, match="--config takes a TOML file that can be read"):
        load_settings({}, environ={}, file=str(tmp_path / "missing.toml"))

    with pytest.raises(InvalidArgumentError, match="FUMEHOOD_CONFIG takes a TOML file that can be read"):
        load_settings({}, environ={"FUMEHOOD_CONFIG": str(tmp_path)})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match="token"):
        ServerSettings(host=host)

    ServerSettings(host=host, token="sixteen-characters")


def test_what_is_printed_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    given = ServerSettings(port=5, dialects=("e2b",), domain='a"b', token="a-very-secret-token")
    text = print_settings(given, dict.fromkeys(ServerSettings.__dataclass_fields__, "default"))
    assert "a-very-secret-token" not in text
    file = tmp_path / "fumehood.toml"
    file.write_text(text)
    values = tomllib.loads(text)
    assert values["token"] == "***"
    again, _ = load_settings({"token": given.token}, environ={}, file=str(file))
    assert again == given


def test_values_of_variables_are_shown_nowhere(tmp_path: Path) -> None:
    """Where a start prints settings, in the log, and as a file: which can be read once it has the values again."""
    environ = {"FUMEHOOD_REPLIT_ENVS": "API=hunter2,B=hunter2"}
    given, sources = load_settings({"state_folder": str(tmp_path)}, environ=environ)
    printed = print_settings(given, sources)
    logged = logged_settings(given, all_of_them=True)
    assert "hunter2" not in printed + str(logged) + str(changed_settings(given, sources, "serve"))
    in_text = logged_settings(given, all_of_them=False)
    assert "hunter2" not in str(in_text)
    assert set(in_text) == {"replit_envs", "state_folder"}
    shown = ("API=***", "B=***")
    assert tuple(tomllib.loads(printed)["replit_envs"]) == logged["replit_envs"] == shown
    assert '    replit_envs = ["API=***", "B=***"] (FUMEHOOD_REPLIT_ENVS)' in changed_settings(
        given, sources, "serve"
    )
    file = tmp_path / "fumehood.toml"
    file.write_text(printed)

    with pytest.raises(InvalidArgumentError, match=r"replit_envs='API=\*\*\*' is refused"):
        load_settings({}, environ={}, file=str(file))

    again, _ = load_settings({}, environ=environ, file=str(file))
    assert again == given


def test_a_start_names_the_settings_that_are_not_the_defaults(tmp_path: Path) -> None:
    """With where each came from; none that was given as it is anyway, and no secret."""
    file = tmp_path / "fumehood.toml"
    file.write_text('pool_size = 2\ndatabase_url = "postgresql://me:secret@db/fumehood"\n')
    given = load_settings(
        {"port": "8765"},
        environ={"FUMEHOOD_TOKEN": "t" * 20, "FUMEHOOD_MAX_NETWORK": "pip", "XDG_STATE_HOME": str(tmp_path)},
        file=str(file),
    )
    assert changed_settings(*given, "serve") == [
        "settings that are not the defaults:",
        "    pool_size = 2 (the file of settings)",
        '    database_url = "postgresql://me:***@db/fumehood" (the file of settings)',
        '    max_network = "pip" (FUMEHOOD_MAX_NETWORK)',
        "all settings: fumehood serve --print-config",
    ]
    assert changed_settings(*load_settings({}, environ={}), "serve")[0] == "settings: the defaults"


def test_each_setting_of_the_engine_is_one_of_the_servers(tmp_path: Path) -> None:
    """What the engine may be told reaches it through the server, whatever it is."""
    given: dict[str, Any] = {
        "pool_size": 7,
        "preload": ("json", "xml.dom"),
        "max_sandboxes": 11,
        "memory_reserve_bytes": 13 << 20,
        "max_cpu_pressure": 17,
        "isolation": "landlock-only",
        "audit_folder": str(tmp_path),
        "records": "keep",
        "records_folder": str(tmp_path),
        "records_bytes": 19 << 20,
        "records_count": 23,
        "records_days": 2.5,
        "template_memory_bytes": 128 << 20,
        "own_interpreters": True,
    }
    assert {item.name for item in fields(EngineSettings)} == {*given, "host_id"}
    environ = {f"FUMEHOOD_{name.upper()}": str(value).lower() for name, value in given.items()}
    environ |= {f"FUMEHOOD_{name}_FOLDER": str(tmp_path) for name in ("AUDIT", "RECORDS")}
    environ |= {"FUMEHOOD_PRELOAD": "json, xml.dom"}
    settings, _ = load_settings({}, environ=environ)
    assert {name: getattr(settings, name) for name in given} == given
    assert ServerSettings().max_sandboxes == HostSettings().max_sandboxes == EngineSettings().max_sandboxes


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("FUMEHOOD_POOL_SIZE", "few", "a whole number from 0 to 1000"),
        ("FUMEHOOD_POOL_SIZE", "-1", "a whole number from 0 to 1000"),
        ("FUMEHOOD_MEMORY_RESERVE_BYTES", "1e9", "a whole number from -1 to 1099511627776"),
        ("FUMEHOOD_PRELOAD", "json;wave", "names of modules, as a list"),
        ("FUMEHOOD_OWN_INTERPRETERS", "perhaps", "true or false"),
        ("FUMEHOOD_HOST_ID", "mine", "six lower-case letters and digits"),
    ],
)
def test_each_process_says_the_same_of_a_setting_of_the_engine(
    variable: str, value: str, allowed: str
) -> None:
    for load in (
        lambda environ: load_environment(EngineSettings, environ),
        lambda environ: load_settings({}, environ=environ),
        lambda environ: load_host_settings({}, environ=environ),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            load({variable: value})

        assert refused.value.field == variable
        assert refused.value.allowed == allowed


def test_the_file_of_a_server_is_not_read_by_an_engine_of_a_users_process(tmp_path: Path) -> None:
    environ = {"FUMEHOOD_CONFIG": str(tmp_path / "missing"), "FUMEHOOD_POOL_SIZE": "7"}
    assert load_environment(EngineSettings, environ) == EngineSettings(pool_size=7)


def test_settings_are_described_without_secrets() -> None:
    """Tokens, passwords of addresses and values of environment variables are left out; origins are named."""
    flags = {"token": "t" * 32, "database_url": "postgresql://me:hunter2@host/db?sslkey=hunter2"}
    environ = {"FUMEHOOD_REPLIT_ENVS": "API=hunter2,B=hunter2", "FUMEHOOD_HOST": "127.0.0.2"}
    described = {each.name: each for each in describe_settings(*load_settings(flags, environ=environ))}
    assert not [each for each in described.values() if "hunter2" in each.value or "tttt" in each.value]
    assert described["replit_envs"].value == '["API=***", "B=***"]'
    assert (described["host"].value, described["host"].origin) == ('"127.0.0.2"', "FUMEHOOD_HOST")
    assert described["token"].origin == "--token"
    assert (described["port"].source, described["port"].origin) == ("default", "")
    assert described["port"].group == "address and access"
