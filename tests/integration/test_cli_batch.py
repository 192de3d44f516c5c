"""`fumehood batch`: each line of a file has one answer in another, also when the command is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.waiting import until

from fumehood.cli.main import main

COMMAND = (sys.executable, "-m", "fumehood", "batch")


@pytest.fixture(autouse=True)
def at_a_server(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("FUMEHOOD_API_KEY", server.token)


def write(path: Path, items: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


def batch(cwd: Path, *words: str, stdin: str = "", **envs: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["batch", *words], environ={**os.environ, **envs}, folder=str(cwd), stdin=stdin)


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_has_an_answer(tmp_path: Path) -> None:
    """With its id or the number of its line; code that fails is a reply, what was refused a problem and exit code 1."""
    items: list[dict[str, Any]] = [
        {"id": "sum", "code": "print(int(input()) + 1)", "stdin": "41\n"},
        {"code": "1 / 0"},
        {
            "id": 7,
            "code": "open('b', 'w').write(open('a').read())",
            "files": {"a": {"text": "x"}},
            "outputs": ["b"],
        },
        {"id": "slow", "code": "while True: pass", "timeout_seconds": 0.3},
        {"id": "none", "code": "1", "template": "no-such-template"},
    ]
    write(tmp_path / "in.jsonl", items)
    done = batch(tmp_path, "in.jsonl", "-o", "out.jsonl")
    assert done.returncode == 1, done.stderr
    assert "4 replies, 2 of them of code that failed, 1 problem (template 1)" in done.stderr
    by_id = {answer["id"]: answer for answer in answers(tmp_path / "out.jsonl")}
    assert sorted(by_id, key=str) == [2, 7, "none", "slow", "sum"]
    assert by_id["sum"]["reply"]["execution"]["logs"]["stdout"] == ["42\n"]
    assert by_id[2]["reply"]["execution"]["error"]["name"] == "ZeroDivisionError"
    assert by_id[7]["reply"]["files"] == {"b": "eA=="}
    assert by_id["slow"]["reply"]["execution"]["error"]["kind"] == "time_limit"
    assert by_id["none"]["problem"]["code"] == "template"


def test_an_interrupted_batch_goes_on(tmp_path: Path) -> None:
    """Ctrl-C leaves whole lines; `--resume` runs what has no answer, and each item has one in the end."""
    items = [{"id": f"i{number}", "code": f"{number} * 2"} for number in range(60)]
    # Nothing behind it can end before the command was interrupted.
    items[5]["code"] = "import time; time.sleep(60); 1"
    write(tmp_path / "in.jsonl", items)
    out = tmp_path / "out.jsonl"

    command = [*COMMAND, "in.jsonl", "-o", "out.jsonl", "--concurrency", "2"]

    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as running:
        until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 3)
        running.send_signal(signal.SIGINT)
        said = running.communicate()[1]

    assert (running.returncode, b"--resume goes on" in said) == (130, True)
    before = answers(out)
    assert 3 <= len(before) < 60

    # Torn in the middle of a line, as by a power failure.
    out.write_bytes(out.read_bytes() + b'{"id": "i59", "rep')
    items[5]["code"] = "10"
    write(tmp_path / "in.jsonl", items)
    assert batch(tmp_path, "in.jsonl", "-o", "out.jsonl").returncode == 73
    done = batch(tmp_path, "in.jsonl", "-o", "out.jsonl", "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} answered before" in done.stderr
    after = answers(out)
    assert after[: len(before)] == before
    assert sorted(answer["id"] for answer in after) == sorted(item["id"] for item in items)


def test_what_failed_by_no_fault_of_its_own_is_run_again(tmp_path: Path) -> None:
    """A server that was full is asked again by `--resume`; a template that does not exist is not."""
    write(tmp_path / "in.jsonl", [{"id": "a", "code": "print(1)"}, {"id": "b", "code": "2"}])
    problems = [{"id": "a", "problem": {"code": "overloaded"}}, {"id": "b", "problem": {"code": "template"}}]
    write(tmp_path / "out.jsonl", problems)
    assert batch(tmp_path, "in.jsonl", "-o", "out.jsonl", "--resume").returncode == 0
    first, second = answers(tmp_path / "out.jsonl")
    assert first == problems[1]
    assert second["reply"]["execution"]["logs"]["stdout"] == ["1\n"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "line 2 takes a JSON object"),
        ('{"code": 1}', "line 2: code"),
        ('{"code": "1", "stdim": "x"}', "did you mean 'stdin'?"),
        ('{"code": "1", "files": {"a": 1}}', "line 2: files['a']"),
        ('{"code": "1", "limits": {"memory": 1}}', "memory"),
        ('{"code": "1", "id": 1}', "an `id` that no line before has"),
    ],
)
def test_a_wrong_line_is_named_before_anything_runs(
    tmp_path: Path, line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"code": "1", "id": 1}\n' + line + "\n")
    code = main(["batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")])
    error = capsys.readouterr().err
    assert (code, said in error) == (64, True), error
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_standard_input_is_read_where_there_is_no_server(tmp_path: Path) -> None:
    """The sandboxes are then the command's own."""
    done = batch(tmp_path, "-", "-o", "out.jsonl", stdin='{"code": "6 * 7"}\n', FUMEHOOD_URL="")
    assert done.returncode == 0, done.stderr
    assert answers(tmp_path / "out.jsonl")[0]["id"] == 1


def test_answers_are_printed_unless_a_file_is_named(tmp_path: Path) -> None:
    """So that a pipe takes them; a command cannot go on in what was printed."""
    write(tmp_path / "in.jsonl", [{"id": "a", "code": "print('\x1b[2J')"}])

    for words in (), ("-o", "-"):
        done = batch(tmp_path, "in.jsonl", *words)
        (line,) = done.stdout.splitlines()
        assert json.loads(line)["reply"]["execution"]["logs"]["stdout"] == ["\x1b[2J\n"]
        assert "\x1b" not in line

    assert not (tmp_path / "-").exists()
    refused = batch(tmp_path, "in.jsonl", "--resume")
    assert (refused.returncode, "--resume needs an output file" in refused.stderr) == (64, True)
