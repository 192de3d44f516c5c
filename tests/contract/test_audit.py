"""The audit record of a sandbox: what happened, in order, in a chain that shows every later change."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
from tests.waiting import at_some_pace

from fumehood import Limits, Network, SandboxClosedError, SandboxNotFoundError
from fumehood.values.audit import AuditLog


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def of_kind(log: AuditLog, kind: str) -> list[dict]:
    return [dict(entry.fields) for entry in log.entries if entry.kind == kind]


def test_what_happened_is_written_in_order(sandbox):
    """One sandbox, everything that its caller does with it, and each once."""
    first = sandbox.run_code("y = 1")
    failed = sandbox.run_code("1 / 0")
    sandbox.files.write("/home/user/a.txt", "hi")
    sandbox.files.read("/home/user/a.txt")
    sandbox.files.rename("/home/user/a.txt", "/home/user/b.txt")
    sandbox.files.make_dir("/home/user/d")
    sandbox.files.remove("/home/user/d")
    sandbox.commands.run("echo hello")
    context = sandbox.create_code_context()
    sandbox.remove_code_context(context)
    sandbox.pause()
    sandbox.resume()
    checkpoint = sandbox.checkpoint()
    sandbox.rollback(checkpoint)
    sandbox.set_network(Network(allow=["example.org"]))
    last = sandbox.run_code("echo shell", language="bash")
    log = sandbox.audit_log()
    assert log.sandbox_id == sandbox.id
    assert log.dropped == 0
    assert [entry.kind for entry in log.entries] == [
        "created",
        "executed",
        "executed",
        "file_in",
        "file_out",
        "file_changed",
        "file_changed",
        "file_changed",
        "command",
        "context",
        "context",
        "paused",
        "resumed",
        "checkpoint",
        "checkpoint",
        "network",
        "executed",
    ]
    created = of_kind(log, "created")[0]
    assert (created["sandbox"], created["template"]) == (sandbox.id, "default")
    assert created["limits"]["memory_bytes"] == Limits().memory_bytes
    assert created["isolation"]["level"] == sandbox.get_info().isolation.level
    assert len(created["policy_sha256"]) == 64
    ok, error, _ = of_kind(log, "executed")
    assert (ok["code_sha256"], ok["outcome"], ok["context"]) == (digest("y = 1"), "ok", "default")
    assert ok["execution"] == first.id
    assert ok["wall_microseconds"] == round(first.usage.wall_seconds * 1_000_000)
    assert (error["outcome"], error["error"]) == ("exception", "ZeroDivisionError")
    assert of_kind(log, "file_in") == [
        {"path": "/home/user/a.txt", "size_bytes": 2, "sha256": digest("hi")},
    ]
    assert of_kind(log, "file_out") == of_kind(log, "file_in")
    assert of_kind(log, "file_changed")[0]["destination"] == "/home/user/b.txt"
    assert of_kind(log, "command")[0]["argv"][-1] == "echo hello"
    assert [fields["verb"] for fields in of_kind(log, "checkpoint")] == ["take_checkpoint", "roll_back"]
    assert of_kind(log, "network")[0]["level"] == "listed"

    # Each execution says where the record stood; the chain holds all of these heads.
    heads = [execution.audit_head for execution in (first, failed, last)]
    assert [head.sequence for head in heads] == [1, 2, 16]
    assert all(log.fault(head) is None for head in heads)
    assert log.head == last.audit_head
    # The record of a context has them as well.
    assert sandbox.get_record().cells[0].execution.audit_head == first.audit_head


def test_of_code_input_and_contents_there_are_digests_alone(face):
    """Whoever may read the record may not read what went through the sandbox."""
    sandbox = face.open(envs={"TOKEN": "value-of-a-secret"})
    sandbox.run_code("code_is_secret = input()", stdin="input-is-secret")
    sandbox.files.write("/home/user/a", "content-is-secret")
    text = sandbox.audit_log().to_jsonl()
    assert "TOKEN" in text
    assert not [word for word in ("value-of", "code_is", "input-is", "content-is") if word in text]


def test_what_a_guest_says_is_bounded_and_spelled_out(face):
    """Its names come in as text without controls; what it repeats is counted, so that nothing is pushed out."""

    def scene(count):
        sandbox = face.open()
        sandbox.run_code("raise type('Bad\\x1b[31m' + 'x' * 5000, (Exception,), {})()")
        sandbox.run_code(
            "import socket\n"
            f"for n in range({count}):\n"
            "    s = socket.create_connection(('127.0.0.1', 3128))\n"
            "    s.sendall(b'CONNECT h%d.example:1\\x1b[2J HTTP/1.1\\r\\n\\r\\n' % n); s.recv(99); s.close()"
        )
        log = sandbox.audit_log()
        error = of_kind(log, "executed")[0]["error"]
        assert error.startswith("Bad\\x1b[31m")
        assert len(error) <= 200
        assert 100 <= len(of_kind(log, "egress")) < count
        assert "\x1b" not in log.to_jsonl()
        assert log.fault() is None
        sandbox.kill()
        ended = sandbox.audit_log()
        left_out = sum(fields["count"] for fields in of_kind(ended, "left_out"))
        assert len(of_kind(ended, "egress")) + left_out == count

    # Some more are written down with each second that it takes.
    at_some_pace(scene, 150, 1500)


def test_limits_tools_and_losses_are_written(face):
    sandbox = face.open(limits=Limits(stdout_bytes=100, grace_seconds=0.3))
    sandbox.run_code("print('x' * 1000)")
    sandbox.run_code("while True: pass", timeout=0.3)

    def double(number: int) -> int:
        return 2 * number

    sandbox.run_code("double(number=4)", tools={"double": double})
    sandbox.run_code("import os; os._exit(3)")
    log = sandbox.audit_log()
    assert [fields["limit"] for fields in of_kind(log, "limit")] == ["stdout_bytes", "wall_seconds"]
    (call,) = of_kind(log, "tool_call")
    assert call["tool"] == "double"
    assert call["execution"] == of_kind(log, "executed")[2]["execution"]
    assert call["arguments_bytes"] > 0
    outcomes = [fields["outcome"] for fields in of_kind(log, "executed")]
    assert outcomes == ["ok", "time_limit", "ok", "context_died"]
    assert of_kind(log, "executed")[3]["state_lost"] is True


def test_the_end_is_written_and_can_be_read_afterwards(face):
    sandbox = face.open()
    execution = sandbox.run_code("1")
    sandbox.kill()

    with pytest.raises(SandboxClosedError):
        sandbox.run_code("2")

    log = sandbox.audit_log()
    assert [entry.kind for entry in log.entries] == ["created", "executed", "ended"]
    assert log.entries[-1].fields["reason"] == "killed"
    assert log.fault(execution.audit_head) is None


def test_a_sandbox_that_never_was_has_none(sync_face):
    sandbox = sync_face.open()
    sandbox._async._sandbox_handle._info = type("Info", (), {"id": "nothing"})

    with pytest.raises(SandboxNotFoundError):
        sandbox.audit_log()


def fumehood(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fumehood", "audit", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_exported_record_is_verified_by_the_command_line(sync_face, tmp_path):
    sandbox = sync_face.open()
    head = sandbox.run_code("1").audit_head
    lines = sandbox.audit_log().to_jsonl()
    (tmp_path / "whole").write_text(lines)
    whole = fumehood("verify", str(tmp_path / "whole"), "--head", str(head))
    assert whole.returncode == 0, whole.stderr
    assert f"2 entries, whole; head 1 {head}" in whole.stdout
    broken = fumehood("verify", "-", stdin=lines.replace('"ok"', '"no"'))
    assert broken.returncode == 1
    assert "line 2: entry 1 was changed" in broken.stderr
    other = fumehood("verify", "-", "--json", "--head", "0" * 64, stdin=lines)
    assert other.returncode == 1
    assert "known head" in json.loads(other.stdout)["reason"]
    assert fumehood("verify", str(tmp_path / "none")).returncode == 74
    assert fumehood("verify", "-", "--head", "short").returncode == 64
