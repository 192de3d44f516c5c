"""Questions about code: completion, inspection and completeness, in both languages, and looks that never end."""

from __future__ import annotations

import pytest

from fumehood_wire.messages import MAX_MATCH_CHARS, MAX_MATCHES, split_parts


class TestPython:
    def test_names_of_the_user_are_completed(self, context):
        """What cells have defined, in a line of several."""
        context.run("value_one = 1\nvalue_two = 2")
        assert context.complete("x = 1\nvalu") == (["value_one", "value_two"], "valu")

    def test_attributes_are_completed(self, context):
        """Of a live object; the cursor may stand within the code."""
        context.run("class Thing:\n    largest_part = 1\nthing = Thing()")
        header, payload = context.ask("complete", "thing.larg + 1", cursor_pos=10)
        assert b"largest_part" in payload
        assert header["cursor_end"] == 10

    def test_nothing_to_complete_is_an_answer(self, context):
        """No name begins like that."""
        assert context.complete("no_such_name_at_all") == ([], "")

    def test_matches_are_bounded(self, context):
        """Too many and too long names: the first ones that fit."""
        context.run(
            "globals().update({f'many_{n:05}': n for n in range(3000)})\n"
            f"globals()['many_' + 'x' * {MAX_MATCH_CHARS}] = 1"
        )
        matches, _ = context.complete("many_")
        assert 100 < len(matches) <= MAX_MATCHES
        assert max(map(len, matches)) <= MAX_MATCH_CHARS

    def test_a_function_is_described(self, context):
        """Its signature and its documentation; with detail 1 its source."""
        context.run('def double(x):\n    """Twice as much."""\n    return 2 * x')
        described = dict(split_parts(*context.ask("inspect", "double(3)", cursor_pos=3, detail_level=0)))
        assert b"Twice as much." in described["text/plain"]
        source = dict(split_parts(*context.ask("inspect", "double(3)", cursor_pos=3, detail_level=1)))
        assert b"return 2 * x" in source["text/plain"]

    def test_an_unknown_name_has_no_description(self, context):
        """An empty answer, no error."""
        assert split_parts(*context.ask("inspect", "nobody", cursor_pos=3, detail_level=0)) == []

    def test_a_long_description_is_cut(self, context):
        """To what one payload may hold."""
        context.run("def f(): pass\nf.__doc__ = 'é' * 5_000_000")
        described = dict(split_parts(*context.ask("inspect", "f", cursor_pos=1, detail_level=0)))
        assert "characters left out" in described["text/plain"].decode()

    @pytest.mark.parametrize(
        ("code", "status", "indent"),
        [
            ("1 + 1", "complete", ""),
            ("", "complete", ""),
            ("if x:", "incomplete", "    "),
            ("print(", "incomplete", ""),
            ("%time 1", "complete", ""),
            ("await x", "complete", ""),
            ("1 1", "invalid", ""),
        ],
    )
    def test_completeness(self, code, status, indent, context):
        """As IPython sees it, with its own syntax."""
        header, _ = context.ask("is_complete", code)
        assert (header["status"], header["indent"]) == (status, indent)

    def test_questions_leave_no_trace(self, context):
        """Neither the count nor the history, nor what the last cell has shown."""
        context.run("41 + 1")
        context.complete("pri")
        context.ask("is_complete", "1")
        outcome = context.run("_, len(In)")
        assert outcome.text == "(42, 3)"
        assert outcome.reply["execution_count"] == 2


LOOP = """
import os
class Endless:
    def __dir__(self):
        os.write(1, b'looking')
        while True: pass
it = Endless()
"""


class TestHostileLooks:
    def test_a_look_that_never_ends_is_interrupted(self, context):
        """The answer is empty, the state is kept."""
        context.run(f"kept = 7\n{LOOP}")
        context.send_question("complete", "it.", cursor_pos=3)
        context.read_until("looking")
        context.interrupt()
        header, payload = context.next_message()
        assert (header["type"], payload) == ("complete_reply", b"[]")
        assert context.run("kept").text == "7"

    @pytest.mark.parametrize(
        "look",
        ["raise RuntimeError", "raise SystemExit", "raise KeyboardInterrupt", "return [1, None, 'x' * 9999]"],
    )
    def test_a_look_that_fails_is_an_empty_answer(self, look, context):
        """Whatever is raised, or returned in place of names."""
        context.run(f"class Bad:\n    def __dir__(self):\n        {look}\nbad = Bad()")
        matches, _ = context.complete("bad.")
        assert all(len(match) <= MAX_MATCH_CHARS for match in matches)
        assert context.run("1").text == "1"

    def test_what_a_look_prints_is_of_the_cell_before(self, context):
        """It is output of code that belongs to no execution that runs."""
        context.run(
            "class Loud:\n    def __dir__(self):\n        print('here')\n        return ['part']\nit = Loud()"
        )
        matches, _ = context.complete("it.")
        assert any(match.endswith("part") for match in matches)
        assert {header["type"] for header, _ in context.background} == {"stream"}

    def test_a_look_that_forks_answers_once(self, context):
        """The child is not the context."""
        context.run(
            "import os\nclass Fork:\n    def __dir__(self):\n        os.fork()\n        return []\nit = Fork()"
        )
        context.complete("it.")
        assert context.run("1").text == "1"


class TestBash:
    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("echo a", "complete"),
            ("", "complete"),
            ("if true; then", "incomplete"),
            ("echo 'a", "incomplete"),
            ("cat <<END", "incomplete"),
            ("a \\", "incomplete"),
            ("f() {", "incomplete"),
            ("fi", "invalid"),
        ],
    )
    def test_completeness(self, code, status, bash_context):
        """As bash itself reads it, without running it."""
        assert bash_context.ask("is_complete", code)[0]["status"] == status

    def test_nothing_is_run(self, bash_context, tmp_path):
        """A question is no execution."""
        bash_context.ask("is_complete", f"touch {tmp_path}/made")
        assert not list(tmp_path.iterdir())

    def test_other_questions_have_empty_answers(self, bash_context):
        """Never an error."""
        assert bash_context.complete("ec") == ([], "")
        assert split_parts(*bash_context.ask("inspect", "echo", cursor_pos=1, detail_level=0)) == []
        assert bash_context.run("echo a").stdout + bash_context.fd_out == "a\n"
