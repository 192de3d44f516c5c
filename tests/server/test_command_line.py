"""The commands for a server, against a real one: what they print, what they do, and with which exit code."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import httpx2
import pytest
from tests.waiting import until

from fumehood import CommandExitError, Sandbox
from fumehood.api.silent_runs import run_silently
from fumehood.assemble import remote_backend
from fumehood.cli.main import main
from fumehood.server.schemas.keys import ScopeName


@pytest.fixture
def sandbox(server, monkeypatch):
    """The id of a sandbox at the server that the environment names."""
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("FUMEHOOD_API_KEY", server.token)

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        name = client.post("/v1/sandboxes", json={"metadata": {"for": "a\x1b test"}}).json()["id"]
        yield name
        client.delete(f"/v1/sandboxes/{name}")


def test_living_sandboxes_are_listed_used_and_ended(sandbox, capsys, monkeypatch):
    """Code runs in the default context, what ran is told, and a sandbox ends when it is asked to."""
    assert main(["ps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["SANDBOX", "STATE", "TEMPLATE"]
    (line,) = [line for line in lines if line.startswith(sandbox)]
    assert "running  default" in line
    assert "  owner  for=a\\x1b test" in line

    assert main(["ps", "--json"]) == 0
    assert sandbox in [info["id"] for info in json.loads(capsys.readouterr().out)]

    assert main(["exec", sandbox, "x = 6; print('\x1b[2J')\nx * 7"]) == 0
    assert capsys.readouterr().out == "\\x1b[2J\n42\n"
    assert main(["exec", sandbox, "import sys; sys.exit(x)"]) == 6
    assert main(["exec", "--bash", sandbox, "exit 3"]) == 3
    monkeypatch.setattr("sys.stdin", io.StringIO("x + 1"))
    assert main(["exec", sandbox, "-"]) == 0
    assert capsys.readouterr().out == "7\n"
    assert main(["exec", sandbox, "while True: pass", "--timeout", "0.3"]) == 124
    capsys.readouterr()

    assert main(["logs", sandbox]) == 0
    shown = capsys.readouterr()
    assert shown.out == "\\x1b[2J\n42\n7\n"
    assert "context bash\n    exit 3\n" in shown.err
    assert "    import sys; sys.exit(x)\n" in shown.err
    assert "TimeLimitExceeded" in shown.err or "KeyboardInterrupt" in shown.err
    assert main(["logs", sandbox, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 4

    assert main(["kill", sandbox]) == 0
    assert main(["kill", sandbox]) in (0, 1)
    assert main(["kill", "nosuch"]) == 1
    assert "nosuch" in capsys.readouterr().err


def test_logs_show_commands_and_what_still_runs(sandbox, capsys):
    """Commands with their output and exit code, the cell that runs with its output so far, and nothing of ours."""
    backend = remote_backend(None, None)
    living = Sandbox.connect(sandbox, backend=backend)
    with pytest.raises(CommandExitError):
        living.commands.run("echo from a command; echo problem >&2; exit 7")

    server = living.commands.run("echo begun; sleep 60", background=True)
    assert run_silently(living, "hidden = 1").error is None
    assert "hidden" not in json.dumps(main_json(["logs", sandbox, "--json"], capsys))

    with ThreadPoolExecutor(1) as pool:
        cell = pool.submit(living.run_code, "import time\nprint('in the cell', hidden)\ntime.sleep(60)")
        until(lambda: "in the cell" in logs_of(sandbox, capsys).out)
        shown = logs_of(sandbox, capsys)
        data = main_json(["logs", sandbox, "--json"], capsys)
        assert living.interrupt()
        assert cell.result().error.kind == "interrupted"

    assert "from a command\n" in shown.out
    assert "problem\n" in shown.err
    assert "    $ echo from a command; echo problem >&2; exit 7\n" in shown.err
    assert "    exit code 7\n" in shown.err
    assert shown.err.count("fumehood: it runs\n") == 2
    assert [(ran["exit_code"], ran["output"][0]["text"]) for ran in data["commands"]] == [
        (7, "from a command\n"),
        (None, "begun\n"),
    ]
    assert [cell["code"].splitlines()[0] for cell in data["running"]] == ["import time"]
    server.kill()


def test_logs_follow_what_comes_until_the_sandbox_ends(sandbox, capsys):
    """Each piece of output once, of cells and commands that begin later too."""
    living = Sandbox.connect(sandbox, backend=remote_backend(None, None))
    living.run_code("print('before')")

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(main, ["logs", sandbox, "--follow"])
        living.run_code("import time\nfor n in range(4):\n    print('piece', n)\n    time.sleep(0.3)")
        living.commands.run("head -c 200000 /dev/zero | tr '\\0' a; echo later")
        seen = ""

        def has_come() -> bool:
            nonlocal seen
            seen += capsys.readouterr().out
            return "later\n" in seen

        until(has_come)
        living.kill()
        assert following.result() == 0

    end = 16 * 1024
    left_out = f"\n[... {200_006 - 2 * end:,} bytes ...]\n"
    assert seen == (
        "before\npiece 0\npiece 1\npiece 2\npiece 3\n" + "a" * end + left_out + "a" * (end - 6) + "later\n"
    )
    assert "has ended: it was killed" in capsys.readouterr().err


def main_json(words, capsys):
    """What a command prints as JSON."""
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def logs_of(sandbox, capsys):
    """What `fumehood logs` prints."""
    assert main(["logs", sandbox]) == 0
    return capsys.readouterr()


def test_hints_are_those_of_the_command_line(sandbox, capsys, monkeypatch):
    """Commands and options, never calls of Python or headers of HTTP."""
    assert main(["cp", f"{sandbox}:nosuch", "-"]) == 70
    assert "`fumehood exec SANDBOX --bash 'ls -l'` shows what is there" in capsys.readouterr().err
    assert main(["compare", sandbox, "now"]) == 64
    assert "hint: the first CHECKPOINT takes a checkpoint; `now` can only be" in capsys.readouterr().err
    assert main(["records", "show", "nosuch"]) == 70
    assert "`fumehood records` lists those that are kept" in capsys.readouterr().err
    assert main(["compare", sandbox, "nosuch"]) == 70
    assert "`fumehood compare SANDBOX` lists those that there are" in capsys.readouterr().err
    Sandbox.connect(sandbox, backend=remote_backend(None, None)).checkpoint("mine")
    assert main(["compare", sandbox]) == 0
    assert "  mine  default  " in capsys.readouterr().out
    monkeypatch.setenv("FUMEHOOD_API_KEY", "wrong")
    assert main(["ps"]) == 70
    said = capsys.readouterr().err
    assert "--api-key" in said
    assert "Bearer" not in said


def test_a_part_of_an_id_names_its_sandbox(sandbox, server, capsys):
    """Its beginning or its end, as long as no other living one has the same; never a part of a few characters."""
    assert main(["exec", sandbox[-6:], "6 * 7"]) == 0
    assert main(["exec", sandbox[:-2], "6 * 7"]) == 0
    assert capsys.readouterr().out == "42\n42\n"

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        other = client.post("/v1/sandboxes", json={}).json()["id"]

        try:
            assert main(["exec", sandbox[:4], "1"]) == 64
            assert "sandboxes have '" in capsys.readouterr().err
            assert main(["kill", sandbox[:3], sandbox[-3:]]) == 1
            assert main(["exec", "nosuch", "1"]) == 70
            assert "`fumehood ps` lists" in capsys.readouterr().err
            assert client.get(f"/v1/sandboxes/{other}").status_code == 200
            assert client.get(f"/v1/sandboxes/{sandbox}").status_code == 200
        finally:
            client.delete(f"/v1/sandboxes/{other}")


def test_files_are_copied_in_and_out(sandbox, tmp_path, capfdbinary, monkeypatch):
    """Files and folders, by the names that are given or their own."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "in" / "deep" / "b.bin").write_bytes(bytes(range(256)))

    assert main(["cp", str(tmp_path / "in" / "a.txt"), f"{sandbox}:"]) == 0
    assert main(["cp", str(tmp_path / "in"), f"{sandbox}:/mnt/data/in"]) == 0
    assert (
        main(["exec", sandbox, "import os; print(open('a.txt').read(), sorted(os.listdir('/mnt/data/in')))"])
        == 0
    )
    assert capfdbinary.readouterr().out == b"a ['a.txt', 'deep']\n"

    assert main(["cp", f"{sandbox}:a.txt", str(tmp_path / "copy.txt")]) == 0
    assert (tmp_path / "copy.txt").read_text() == "a"
    assert main(["cp", f"{sandbox}:/mnt/data/in", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "deep" / "b.bin").read_bytes() == bytes(range(256))

    assert main(["cp", f"{sandbox}:/mnt/data/in/deep/b.bin", "-"]) == 0
    assert capfdbinary.readouterr().out == bytes(range(256))
    assert main(["cp", f"{sandbox}:/mnt/data/in", "-"]) == 64
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from stdin\xff")))
    assert main(["cp", "-", f"{sandbox}:piped"]) == 0
    assert main(["cp", f"{sandbox}:piped", "-"]) == 0
    assert capfdbinary.readouterr().out == b"from stdin\xff"
    assert main(["cp", "-", f"{sandbox}:"]) == 64

    assert main(["cp", str(tmp_path / "none"), f"{sandbox}:x"]) == 74
    assert main(["cp", "a", "b"]) == 64
    assert b"SOURCE='a' is refused" in capfdbinary.readouterr().err


def test_a_file_is_harmless_at_a_terminal(sandbox, capfdbinary, monkeypatch):
    """Its text alone, unless `--raw` says otherwise: what a guest has written could rule the terminal."""
    code = "open('a.bin', 'wb').write(b'\\x1b]0;owned\\x07\\xff ' + 'é'.encode() + b'\\n')"
    assert main(["exec", sandbox, code]) == 0
    capfdbinary.readouterr()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["cp", f"{sandbox}:a.bin", "-"]) == 0
    assert capfdbinary.readouterr().out == "\\x1b]0;owned\\x07\\xff é\n".encode()
    assert main(["cp", "--raw", f"{sandbox}:a.bin", "-"]) == 0
    assert capfdbinary.readouterr().out == b"\x1b]0;owned\x07\xff \xc3\xa9\n"


def test_keys_are_made_listed_rotated_and_revoked(sandbox, server, capsys):
    """A token is alone on standard output; what a key may is what was asked for."""
    bounds = ["--max-sandboxes", "2", "--max-memory", "512M", "--max-limit", "wall_seconds=60"]
    assert main(["keys", "create", "ci", "--scope", "execute", "--scope", "sandboxes", *bounds]) == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    key = shown.err.split()[2].rstrip(";")

    assert main(["exec", sandbox, "1", "--api-key", token]) == 70
    with httpx2.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as client:
        its = client.post("/v1/sandboxes", json={}).json()["id"]
        assert main(["ps"]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(its)]
        # The id too: filters take it, and any key may have another's id as its name.
        assert f"  ci ({key})  " in line
        client.delete(f"/v1/sandboxes/{its}")

    assert main(["ps", "--api-key", token]) == 0
    assert sandbox not in capsys.readouterr().out

    assert main(["keys", "list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(key)]
    assert "execute,sandboxes" in line
    assert "max_sandboxes=2 wall_seconds<=60 memory_bytes<=536,870,912" in line

    assert main(["keys", "rotate", key]) == 0
    rotated = capsys.readouterr().out.strip()
    assert main(["ps", "--api-key", token]) == 70
    assert main(["ps", "--api-key", rotated]) == 0

    assert main(["keys", "set", key, "--max-sandboxes", "7", "--no-bound", "wall_seconds"]) == 0
    assert "max_sandboxes=7 memory_bytes<=536,870,912" in capsys.readouterr().out
    assert main(["keys", "set", "ci", "--max-sandboxes", "8"]) == 0
    assert "max_sandboxes=8 " in capsys.readouterr().out
    assert main(["keys", "set", "a/b", "--max-sandboxes", "8"]) == 64
    assert "no key has the id or the name 'a/b'" in capsys.readouterr().err
    assert main(["keys", "set", key]) == 64
    assert "fumehood keys set --help" in capsys.readouterr().err

    assert main(["usage"]) == 0
    capsys.readouterr()
    assert main(["usage", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), list)

    assert main(["keys", "create", "ci"]) == 0
    said = capsys.readouterr().err
    second = said.split()[2].rstrip(";")
    assert f"another key has the name 'ci' already: {key}; `fumehood keys set {second} --name NAME`" in said
    assert main(["keys", "revoke", "ci"]) == 64
    assert f"2 keys have the name 'ci': {', '.join(sorted((key, second)))}" in capsys.readouterr().err
    assert main(["keys", "revoke", second]) == 0
    assert f"key {second} is revoked; its sandboxes have ended" in capsys.readouterr().err
    assert main(["keys", "revoke", "ci"]) == 0
    assert main(["ps", "--api-key", rotated]) == 70
    capsys.readouterr()
    assert main(["keys", "list"]) == 0
    assert key not in capsys.readouterr().out
    assert main(["keys", "list", "--all"]) == 0
    assert f"{key}  ci" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keys", "create", "x", "--max-limit", "memory"], "--max-limit='memory' is refused"),
        (
            ["keys", "create", "x", "--max-network", "all"],
            "--max-network 'all' is not one of none, pip, listed, internet",
        ),
        (
            ["keys", "create", "x", "--scope", "foo"],
            f"--scope 'foo' is not one of {', '.join(get_args(ScopeName))}\n",
        ),
        (["keys", "set", "x", "--scope", "exec"], "watch; did you mean 'execute'?"),
    ],
)
def test_wrong_words_are_refused_here(words, said, capsys, monkeypatch):
    """Before a server is asked."""
    monkeypatch.setenv("FUMEHOOD_URL", "http://127.0.0.1:1")
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code

    assert (code, said in capsys.readouterr().err) == (64, True)
