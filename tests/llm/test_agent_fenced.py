"""Models that write their code into their text: telling prose from code, and turns with one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.llm.scripted_server import DIALECTS, Reply, Request, ScriptedServer

from fumehood.llm import Agent, CodeWritten, TextWritten
from fumehood.llm.providers.fenced import FenceSplitter

TEXT = """\
First I look.

```python
import os
print(os.getcwd())
```

Then, in a shell:

```bash
rm -rf /
```

   ```py
   if True:
       print("`tick`")
   ```
Done."""


def split(pieces: list[str]) -> tuple[FenceSplitter, list[object]]:
    splitter = FenceSplitter(first_number=3)
    told = [event for piece in pieces for event in splitter.feed(piece)]
    return splitter, told + splitter.finish()


def test_blocks_of_python_are_code_and_others_are_text():
    """Only what says that it is Python is run; indentation that the list around it made is taken away."""
    splitter, _ = split([TEXT])

    assert [call.code for call in splitter.calls] == [
        "import os\nprint(os.getcwd())\n",
        'if True:\n    print("`tick`")\n',
    ]
    assert [call.id for call in splitter.calls] == ["cell_3", "cell_4"]
    assert "rm -rf" in splitter.prose
    assert "import os" not in splitter.prose
    assert not splitter.is_open


@given(st.lists(st.integers(0, len(TEXT)), max_size=40))
def test_where_a_text_is_cut_makes_no_difference(cuts):
    """Pieces of any size give the same code, the same prose, and events that add up to them."""
    places = sorted({0, len(TEXT), *cuts})
    pieces = [TEXT[start:end] for start, end in pairwise(places)]
    whole, _ = split([TEXT])
    splitter, told = split(pieces)

    assert splitter.calls == whole.calls
    assert splitter.prose == whole.prose
    assert "".join(event.text for event in told if isinstance(event, TextWritten)) == whole.prose
    written = "".join(
        event.text for event in told if isinstance(event, CodeWritten) and event.call_id == "cell_3"
    )
    assert written == whole.calls[0].code


@given(st.text(alphabet="`python\n bash~x", max_size=80))
def test_nothing_of_a_text_is_lost(text):
    """Whatever a model writes, it is prose, code, or the line of a fence."""
    splitter, told = split([text])
    shown = "".join(event.text for event in told)
    assert len(shown) <= len(text)

    if "```" not in text:
        assert shown == splitter.prose == text
        assert splitter.calls == []


def test_a_longer_fence_holds_a_shorter_one():
    """As in Markdown."""
    splitter, _ = split(['````python\ntext = """\n```\n"""\n````\n'])
    assert [call.code for call in splitter.calls] == ['text = """\n```\n"""\n']


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_without_tool_calls(dialect):
    """The code is run, its output comes as a message of the user, and a message without code is the answer."""
    seen: list[Request] = []

    script = (
        Reply(text="I look.\n\n```python\nprint(1 / 0)\n```", check=seen.append),
        Reply(text="```python\nprint(6 * 7)\n```\nThis prints 41.", check=seen.append),
        Reply(text="It is 42.", check=seen.append),
    )

    with ScriptedServer(dialect, *script) as server:
        with Agent(**server.arguments, fenced=True, system_prompt="You run Python.") as agent:
            answer = agent.ask("How much?")

    assert answer.text == "It is 42."
    assert [cell.code for cell in answer.cells] == ["print(1 / 0)\n", "print(6 * 7)\n"]
    assert [cell.result.is_error for cell in answer.cells] == [True, False]
    assert all(request.tools == [] for request in seen)
    assert "```python" in seen[0].system
    assert [role for role, _ in seen[2].said] == ["user", "assistant", "user", "assistant", "user"]
    assert "ZeroDivisionError" in seen[1].last_user
    # It gets its own words back as they were, with what it had made up.
    assert seen[2].said[3][1] == "```python\nprint(6 * 7)\n```\nThis prints 41."
    assert seen[2].last_user == "Output of cell_2:\n42"


def test_a_block_that_was_cut_off_is_not_run():
    """Those before it are."""
    cut = Reply(text="```python\nprint('whole')\n```\n```python\nprint('ha", end="length")

    with ScriptedServer("openai-chat", cut, Reply(text="Done.")) as server:
        with Agent(**server.arguments, fenced=True, system_prompt="You run Python.") as agent:
            answer = agent.ask("Print.")

    assert [cell.result.text.strip() for cell in answer.cells] == ["whole"]
