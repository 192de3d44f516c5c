"""Checkpoints of bash: its state is written down as text, and a fresh bash goes on with it."""

from __future__ import annotations

import contextlib

import pytest

from fumehood import CheckpointError

pytestmark = pytest.mark.in_guest


@pytest.fixture
def bash(sandbox):
    """Runs cells of bash."""
    return lambda code, **options: sandbox.run_code(code, language="bash", **options)


def test_what_text_can_hold_comes_back(sandbox, bash):
    """Variables of each kind, functions, aliases, options, traps, umask and the directory, with the files."""
    bash(
        "x=41; declare -A m=([a]=1 [b]='two words'); arr=(1 2 '3 4'); f() { echo \"f $1\"; }; alias ll='ls -l'\n"
        "shopt -s extglob; export E=1; readonly RO=7; cd /usr; trap 'echo bye' USR1; umask 027; set -o pipefail"
    )
    bash("g() { case $1 in +(a|b)) echo match;; esac; }; echo old >/mnt/data/f")
    checkpoint = sandbox.checkpoint(context="bash")
    assert checkpoint.left_behind == ()

    bash("x=99; unset m; unset -f f; cd /tmp; umask 0; echo new >/mnt/data/f")
    shown = 'echo "$x ${m[b]} ${arr[2]} $E $RO $PWD $(umask) $(f hi) $(cat /mnt/data/f)"; g ab; trap -p USR1; alias ll'

    for _ in range(2):
        sandbox.rollback(checkpoint)
        assert "".join(bash(shown).logs.stdout).splitlines() == [
            "41 two words 3 4 1 7 /usr 0027 f hi old",
            "match",
            "trap -- 'echo bye' SIGUSR1",
            "alias ll='ls -l'",
        ]
        bash("x=0")

    assert "pipefail       \ton" in "".join(bash("set -o | grep pipefail").logs.stdout)


def test_options_that_end_a_bash_come_back(sandbox, bash):
    """After all that is read; the first command that fails then ends it."""
    bash("set -eu")
    sandbox.rollback(sandbox.checkpoint(context="bash"))

    assert "".join(bash("echo $-").logs.stdout).startswith("eh")
    assert bash("false").error.value == "1"


def test_a_fork_of_its_checkpoint_goes_on_in_it(sandbox, bash):
    """In its context of bash; Python there is Python."""
    bash("kept=1; cd /tmp")
    checkpoint = sandbox.checkpoint(context="bash")
    bash("kept=2")

    with sandbox.fork(checkpoint=checkpoint) as fork:
        assert fork.run_code("echo $kept $PWD", language="bash").logs.stdout == ["1 /tmp\n"]
        assert fork.run_code("6 * 7").text == "42"


def test_a_transaction_that_fails_leaves_nothing(bash):
    """As in Python."""
    bash("x=41")

    assert bash("x=50; false", transactional=True).error is not None
    assert bash("echo $x").logs.stdout == ["41\n"]
    assert bash("x=50", transactional=True).error is None
    assert bash("echo $x").logs.stdout == ["50\n"]
    assert bash("while true; do :; done", timeout=1, transactional=True).error.kind == "time_limit"
    assert bash("echo $x").logs.stdout == ["50\n"]


def test_background_jobs_are_named(sandbox, bash):
    """They are left behind, and `strict` refuses."""
    bash("sleep 1000 &")

    assert [line.startswith("child process") for line in sandbox.checkpoint(context="bash").left_behind] == [
        True
    ]


def test_a_bash_that_lies_costs_no_more_than_itself(sandbox, bash):
    """The guest may redefine all that the text is made with: the checkpoint fails or holds what it says."""
    sandbox.run_code("y = 1")
    bash("x=1; declare() { echo 'exit 7'; }; shopt() { echo 'kill -9 $$'; }")
    checkpoint = sandbox.checkpoint(context="bash")
    bash("true")

    with contextlib.suppress(CheckpointError):
        sandbox.rollback(checkpoint)

    assert sandbox.run_code("y").text == "1"
    assert bash("echo alive").logs.stdout == ["alive\n"]
