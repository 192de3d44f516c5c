"""The language bash: a live shell with the semantics of a context."""

from __future__ import annotations

import pytest


def test_state_lasts_from_cell_to_cell(bash_context):
    """Directory, variables and functions of one cell are there in the next."""
    bash_context.run("cd /usr; x=5; greet() { echo hello $1 $x; }")
    outcome = bash_context.run("greet you; pwd")
    assert outcome.error is None
    assert bash_context.fd_out == "hello you 5\n/usr\n"


def test_a_status_that_is_not_zero_is_an_error_with_its_number(bash_context):
    """The exit status of the last command is the outcome of the cell."""
    outcome = bash_context.run("false || (exit 7)")
    assert outcome.error == ("ExitCode", "7")
    assert outcome.reply["status"] == "error"
    assert bash_context.run("echo $?").error is None
    assert bash_context.fd_out == "7\n"


def test_an_interrupt_ends_the_cell_and_keeps_the_shell(bash_context):
    """SIGINT gives up the whole cell, even inside of a function, and the variables survive."""
    bash_context.run("x=1; wait_long() { echo started; sleep 60; echo not reached; }")
    bash_context.send("wait_long; echo nor this; x=2")
    bash_context.read_until("started")
    bash_context.interrupt()
    assert bash_context.finish().error == ("KeyboardInterrupt", "")
    bash_context.run("echo x=$x")
    assert bash_context.fd_out == "started\nx=1\n"


def test_envs_hold_for_one_cell(bash_context):
    """Variables of a request are there during its cell, for children too, and undone after it."""
    bash_context.run("A=old")
    bash_context.run("echo $A $B; bash -c 'echo $B'", envs={"A": "new", "B": "it's\ntwo"})
    bash_context.run('echo $A "${B-unset}"')
    assert bash_context.fd_out == "new it's two\nit's two\nold unset\n"


def test_a_syntax_error_is_an_error_of_the_cell(bash_context):
    """An unfinished construct fails the cell; the next one runs."""
    assert bash_context.run("if then").error == ("ExitCode", "2")
    assert bash_context.run("echo 'open").error is not None
    assert "unexpected" in bash_context.fd_err
    assert bash_context.run("echo ok").error is None
    assert bash_context.fd_out == "ok\n"


def test_commands_that_read_input_get_none(bash_context):
    """A command that reads standard input sees its end, and not the following cells."""
    bash_context.run("cat; read line; echo got:$line")
    assert bash_context.fd_out == "got:\n"


def test_nothing_of_the_shell_itself_is_printed(bash_context):
    """No prompt, no complaint about a missing terminal, no expansion of exclamation marks."""
    bash_context.run('echo "hi!there"')
    assert bash_context.fd_out == "hi!there\n"
    assert bash_context.fd_err == ""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("exit 4", "4"),
        ("(exit 5); exit", "5"),
        ("f() { exit 6; }; f", "6"),
        ("set -e; false; echo not reached", "1"),
        ("set -euo pipefail; (exit 7) | cat; echo not reached", "7"),
        ("exec bash -c 'exit 8'", "8"),
        ("trap 'echo bye' EXIT; exit 9", "9"),
    ],
)
def test_a_cell_that_ends_bash_has_its_status(bash_context, code, status):
    """It is an error with the number, nothing is printed that the code did not print, and the context goes on."""
    bash_context.run("cd /usr; x=1")
    outcome = bash_context.run(code)
    assert outcome.error == ("ExitCode", status)
    assert f"bash has exited with status {status}" in outcome.traceback
    assert bash_context.fd_err == ""
    assert bash_context.fd_out == ("bye\n" if "bye" in code else "")
    assert bash_context.run("echo $?").error is None
    assert bash_context.fd_out == f"{status}\n"


def test_to_exit_well_is_no_error(bash_context):
    """A script that says `exit 0` has done well, and what follows is not run."""
    assert bash_context.run("echo hi; exit 0; echo not reached").error is None
    assert bash_context.run("(exit 0); echo still").error is None
    assert (bash_context.fd_out, bash_context.fd_err) == ("hi\nstill\n", "")


def test_exit_keeps_the_state_and_drops_options_and_traps(bash_context):
    """Directory, variables of all kinds, functions and aliases go on in the new bash; `set -e` does not."""
    bash_context.run(
        "cd /usr; x=$'a\\'b\\nc'; export y=2; arr=(1 'two words'); declare -A map=([k]=v); declare -r fixed=3; "
        "greet() { echo hello $1; }; export -f greet; alias ll='echo listed'; noise=$RANDOM"
    )
    assert bash_context.run("set -e; z=26; false", envs={"y": "borrowed"}).error == ("ExitCode", "1")
    show = (
        'echo "$x"; bash -c \'echo $y; greet child\'; echo "${arr[1]} ${map[k]} $fixed $z"; greet you; ll; pwd; '
        "false; echo on; fixed=4"
    )
    bash_context.run(show)
    assert bash_context.fd_out == ("a'b\nc\n2\nhello child\ntwo words v 3 26\nhello you\nlisted\n/usr\non\n")


def test_a_cell_after_set_e_runs(bash_context):
    """What the shell does for itself between two cells does not fail where `set -e` would end it."""
    bash_context.run("set -euo pipefail; x=1")
    assert bash_context.run("x=$((x + 1)); echo $x").error is None
    assert bash_context.run("! true || echo $x", envs={"A": "1"}).error is None
    assert bash_context.fd_out == "2\n2\n"


def test_a_bash_whose_state_could_not_be_kept_is_reported(bash_context):
    """With the error, or at the beginning of the next cell when there was none."""
    bash_context.run("x=1")
    assert "are gone" in bash_context.run("exec false").traceback
    bash_context.run("x=2")
    assert bash_context.run("exec true").error is None
    assert bash_context.fd_err == ""
    bash_context.run('echo "${x-none}"')
    assert bash_context.fd_out == "none\n"
    assert "are gone" in bash_context.fd_err


def test_a_signal_that_ends_bash_ends_the_context(bare_zygote):
    """The host learns how: a lack of memory shows as SIGKILL."""
    context = bare_zygote.start("bash")
    context.send("kill -KILL $$")
    assert context.close() == -9


def test_large_code_runs(bash_context):
    """Code of a megabyte is no problem."""
    bash_context.run(f"x='{'a' * 1_000_000}'; echo ${{#x}}")
    assert bash_context.fd_out == "1000000\n"


def test_usage_counts_the_work_of_commands(bash_context):
    """The CPU time of what bash has run and waited for is in the reply, at the latest with the next cell."""
    before = bash_context.run("for ((i = 0; i < 200000; i++)); do :; done").reply
    assert before["peak_memory_bytes"] > 0
