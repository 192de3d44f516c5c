"""What a kernel says on its WebSocket: order, parents, states, and each kind of output."""

from __future__ import annotations

import base64

import pytest

from .conftest import sandbox_of

FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


def kinds(messages) -> list[str]:
    """Types of messages in order, a status with its state."""
    return [
        message["content"]["execution_state"]
        if message["header"]["msg_type"] == "status"
        else message["header"]["msg_type"]
        for message in messages
    ]


def content_of(messages, kind):
    return next(message["content"] for message in messages if message["header"]["msg_type"] == kind)


@pytest.mark.parametrize("v1", [False, True], ids=["default", "v1"])
def test_code_runs_between_busy_and_idle_in_both_framings(gateway, v1):
    channels = gateway.connect(gateway.start(), v1=v1)
    messages = channels.run("print('hello')\n40 + 2")

    assert kinds(messages) == [
        "busy",
        "execute_input",
        "stream",
        "execute_result",
        "execute_reply",
        "idle",
    ]
    assert content_of(messages, "execute_input") == {"code": "print('hello')\n40 + 2", "execution_count": 1}
    assert content_of(messages, "stream") == {"name": "stdout", "text": "hello\n"}
    assert content_of(messages, "execute_result")["data"] == {"text/plain": "42"}
    assert content_of(messages, "execute_result")["execution_count"] == 1
    assert content_of(messages, "execute_reply")["status"] == "ok"
    assert {message["channel"] for message in messages} == {"iopub", "shell"}
    assert {message["parent_header"]["session"] for message in messages} == {channels.session}


def test_type_and_id_stand_at_the_top_of_each_message_too(channels):
    for message in channels.run("1"):
        assert message["msg_type"] == message["header"]["msg_type"]
        assert message["msg_id"] == message["header"]["msg_id"]


def test_state_lasts_and_cells_are_counted(channels):
    channels.run("x = 20")
    messages = channels.run("x + 1")

    assert content_of(messages, "execute_result")["data"]["text/plain"] == "21"
    assert content_of(messages, "execute_reply")["execution_count"] == 2


def test_a_silent_cell_is_not_counted_and_not_announced(channels):
    assert kinds(channels.run("print(1)", silent=True)) == ["busy", "stream", "execute_reply", "idle"]
    assert content_of(channels.run("2"), "execute_reply")["execution_count"] == 1


def test_an_error_has_a_plain_traceback_and_aborts_what_waits(channels):
    failing = channels.execute("def f():\n    1 / 0\nf()")
    waiting = [channels.execute("print('not run')"), channels.execute("print('nor this')")]
    failed = channels.answers(failing)
    error, reply = content_of(failed, "error"), content_of(failed, "execute_reply")

    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert isinstance(error["traceback"], list)
    assert "\x1b" not in "".join(error["traceback"])
    assert "in f" in "\n".join(error["traceback"])
    assert reply["status"] == "error"
    assert reply["ename"] == "ZeroDivisionError"

    for msg_id in waiting:
        messages = channels.answers(msg_id)
        assert kinds(messages) == ["busy", "execute_reply", "idle"]
        assert content_of(messages, "execute_reply")["status"] == "aborted"

    assert content_of(channels.run("1"), "execute_reply")["status"] == "ok"


def test_without_stop_on_error_what_waits_is_run(channels):
    failing = channels.execute("1 / 0", stop_on_error=False)
    waiting = channels.execute("print('run')")

    assert content_of(channels.answers(failing), "execute_reply")["status"] == "error"
    assert content_of(channels.answers(waiting), "stream")["text"] == "run\n"


def test_figures_are_png_in_base64_and_brought_once(channels):
    data = content_of(channels.run(FIGURE), "display_data")["data"]

    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert not any(mime.startswith("application/vnd.fumehood") for mime in data)


def test_displays_are_updated_and_cleared(channels):
    messages = channels.run(
        "from IPython.display import display, clear_output, HTML\n"
        "h = display(HTML('<b>1</b>'), display_id='one')\nh.update(HTML('<b>2</b>'))\nclear_output(wait=True)"
    )
    shown, updated = content_of(messages, "display_data"), content_of(messages, "update_display_data")

    assert shown["transient"] == updated["transient"] == {"display_id": "one"}
    assert updated["data"]["text/html"] == "<b>2</b>"
    assert content_of(messages, "clear_output") == {"wait": True}


def test_input_is_asked_of_the_client_and_answered(channels):
    msg_id = channels.execute("name = input('who? ')\nname.upper()", allow_stdin=True)
    asked = channels.until(lambda message: message["channel"] == "stdin")[-1]
    assert asked["content"] == {"prompt": "who? ", "password": False}
    assert asked["parent_header"]["msg_id"] == msg_id

    channels.send("input_reply", {"value": "ada"}, channel="stdin", parent_header=asked["header"])
    assert content_of(channels.answers(msg_id), "execute_result")["data"]["text/plain"] == "'ADA'"


def test_input_fails_where_nobody_answers(channels):
    assert content_of(channels.run("input()"), "error")["ename"] == "EOFError"


def test_expressions_are_answered_as_not_evaluated(channels):
    reply = content_of(channels.run("x = 1", user_expressions={"now": "x"}), "execute_reply")

    assert reply["status"] == "ok"
    assert reply["user_expressions"]["now"]["status"] == "error"


def test_a_cell_is_interrupted_over_rest_and_keeps_its_state(gateway):
    kernel_id = gateway.start()
    channels = gateway.connect(kernel_id)
    msg_id = channels.execute("x = 5\nprint('begun')\nwhile True: pass")
    waiting = channels.execute("print('not run')")
    channels.until(lambda message: message["header"]["msg_type"] == "stream")
    assert gateway.call("GET", f"/api/kernels/{kernel_id}").json()["execution_state"] == "busy"
    assert gateway.call("POST", f"/api/kernels/{kernel_id}/interrupt").status_code == 204

    assert content_of(channels.answers(msg_id), "error")["ename"] == "KeyboardInterrupt"
    assert content_of(channels.answers(waiting), "execute_reply")["status"] == "aborted"
    assert content_of(channels.run("x"), "execute_result")["data"]["text/plain"] == "5"


def test_a_cell_is_interrupted_by_a_message(channels):
    msg_id = channels.execute("print('begun')\nwhile True: pass")
    channels.until(lambda message: message["header"]["msg_type"] == "stream")
    channels.send("interrupt_request", {}, channel="control")
    messages = channels.until(
        lambda message: (
            message["header"]["msg_type"] == "execute_reply" and message["parent_header"]["msg_id"] == msg_id
        )
    )

    assert messages[-1]["content"]["ename"] == "KeyboardInterrupt"


def test_questions_about_code_are_answered(channels):
    channels.run("import json\nvalue = {'a': 1}")
    info = channels.ask("kernel_info_request", {})
    completed = channels.ask("complete_request", {"code": "json.dum", "cursor_pos": 8})
    inspected = channels.ask("inspect_request", {"code": "json.dumps", "cursor_pos": 10, "detail_level": 0})
    found = channels.ask("inspect_request", {"code": "nothing_here", "cursor_pos": 3, "detail_level": 0})

    assert info["protocol_version"].startswith("5.")
    assert info["language_info"]["name"] == "python"
    assert {"dump", "dumps"} <= {match.rpartition(".")[2] for match in completed["matches"]}
    assert completed["cursor_end"] == 8
    assert inspected["found"]
    assert "Serialize" in inspected["data"]["text/plain"]
    assert found == {"status": "ok", "found": False, "data": {}, "metadata": {}}
    assert channels.ask("is_complete_request", {"code": "for i in x:"}) == {
        "status": "incomplete",
        "indent": "    ",
    }
    assert channels.ask("is_complete_request", {"code": "1 + 1"})["status"] == "complete"
    assert channels.ask("is_complete_request", {"code": "1 +* 1"})["status"] == "invalid"


def test_history_has_what_was_run(channels):
    for code in ("a = 1", "b = 2", "a + b"):
        channels.run(code)

    channels.run("hidden = 1", silent=True)
    tail = channels.ask("history_request", {"hist_access_type": "tail", "n": 2, "output": False, "raw": True})
    found = channels.ask("history_request", {"hist_access_type": "search", "n": 9, "pattern": "a*"})
    ranged = channels.ask(
        "history_request", {"hist_access_type": "range", "session": 0, "start": 1, "stop": 3, "output": True}
    )

    assert tail["history"] == [[1, 2, "b = 2"], [1, 3, "a + b"]]
    assert [entry[2] for entry in found["history"]] == ["a = 1", "a + b"]
    assert ranged["history"] == [[1, 1, ["a = 1", None]], [1, 2, ["b = 2", None]]]


def test_the_debugger_says_that_there_is_none(channels):
    answer = channels.ask(
        "debug_request", {"type": "request", "seq": 3, "command": "initialize"}, channel="control"
    )

    assert answer["success"] is False
    assert answer["request_seq"] == 3


def test_requests_that_make_no_sense_are_answered_as_errors(channels):
    assert content_of(channels.run(17), "execute_reply")["ename"] == "InvalidArgumentError"
    assert channels.ask("complete_request", {"code": None})["status"] == "error"
    assert channels.ask("unheard_of_request", {}, channel="control")["status"] == "error"
    assert kinds(channels.answers(channels.send("unheard_of_request", {}))) == ["busy", "idle"]
    assert content_of(channels.run("1"), "execute_reply")["status"] == "ok"


def test_a_context_that_dies_is_reported_as_a_restart(channels):
    channels.run("x = 1")
    msg_id = channels.execute("import os\nos.kill(os.getpid(), 9)")
    messages = channels.answers(msg_id)
    after = [channels.receive()["content"]["execution_state"] for _ in range(3)]

    assert content_of(messages, "execute_reply")["status"] == "error"
    assert after == ["restarting", "starting", "idle"]
    assert content_of(channels.run("x"), "error")["ename"] == "NameError"


def test_what_was_left_out_is_said(channels):
    messages = channels.run("print('x' * 3_000_000)")
    notes = [message["content"]["text"] for message in messages if message["header"]["msg_type"] == "stream"]

    assert any("of standard output left out here" in note for note in notes)
    assert notes[-1].endswith("xxx\n")


def test_a_kernel_speaks_bash(gateway):
    channels = gateway.connect(gateway.start(name="bash"))
    channels.run("cd /tmp; greeting=hello")
    messages = channels.run('echo "$greeting from $PWD"')

    assert channels.ask("kernel_info_request", {})["language_info"]["name"] == "bash"
    assert content_of(messages, "stream")["text"] == "hello from /tmp\n"
    assert content_of(channels.run("false"), "error")["ename"] == "ExitCode"


def test_a_cell_may_take_longer_than_a_plain_execution(gateway):
    kernel_id = gateway.start()
    info = gateway.native("GET", f"/v1/sandboxes/{sandbox_of(kernel_id)}").json()

    assert info["limits"]["wall_seconds"] == 86_400
    assert info["idle_timeout_seconds"] == 3600
    assert info["metadata"] == {"dialect": "jupyter", "kernel_name": "python3"}
