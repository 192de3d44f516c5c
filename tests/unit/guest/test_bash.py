"""The language bash: a live shell with the semantics of a context."""

from __future__ import annotations


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


def test_exit_ends_the_context_with_its_status(bare_zygote):
    """`exit 3` ends the context process with status 3."""
    context = bare_zygote.start("bash")
    context.send("exit 3")
    assert context.close() == 3


def test_large_code_runs(bash_context):
    """Code of a megabyte is no problem."""
    bash_context.run(f"x='{'a' * 1_000_000}'; echo ${{#x}}")
    assert bash_context.fd_out == "1000000\n"


def test_usage_counts_the_work_of_commands(bash_context):
    """The CPU time of what bash has run and waited for is in the reply, at the latest with the next cell."""
    before = bash_context.run("for ((i = 0; i < 200000; i++)); do :; done").reply
    assert before["peak_memory_bytes"] > 0
