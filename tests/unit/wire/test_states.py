"""States: nothing from a guest is credited to an execution that it cannot belong to."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood_wire.frames import ProtocolError
from fumehood_wire.messages import CONTEXT_TO_HOST, MAX_ID_CHARS
from fumehood_wire.states import Conversation, Kind, State

NAME = "f81d4fae7dec11d0"
COMMS = {"comm_open", "comm_msg", "comm_close"}
BACKGROUND = {"stream", "display_data", "update_display_data", "clear_output", *COMMS}
QUESTIONS = {
    "complete_request": ("complete_reply", State.COMPLETING),
    "inspect_request": ("inspect_reply", State.INSPECTING),
    "is_complete_request": ("is_complete_reply", State.CHECKING),
    "variables_request": ("variables_reply", State.LOOKING),
}
ANSWERS = {state: {reply} for reply, state in QUESTIONS.values()}
OF_CURRENT = BACKGROUND | {"changes", "telemetry", "execute_result", "error", "execute_reply", "tool_request"}
TOOLS = [{"name": "search"}, {"name": "fetch"}]


def request(conversation: Conversation, *, allow_stdin: bool = True, tool_calls: int = 3) -> str:
    """Send the next execute_request and return its id."""
    execution_id = conversation.next_id
    tools = {"tools": TOOLS, "tool_calls": tool_calls} if tool_calls else {}
    conversation.sent({"type": "execute_request", "id": execution_id, "allow_stdin": allow_stdin, **tools})
    return execution_id


def message(kind: str, execution_id: str | None = None) -> dict[str, Any]:
    header = {"type": kind} if execution_id is None else {"type": kind, "id": execution_id}
    extra = {"tool_request": {"name": "search", "call": 1}, "checkpoint_reply": {"errno": 0}}
    return {**header, **extra.get(kind, {})}


def in_state(state: State) -> Conversation:
    """Return a conversation in that state, with two executions that have ended."""
    conversation = Conversation(NAME)

    if state is State.STARTING:
        return conversation

    conversation.received(message("status"))

    for _ in range(2):
        conversation.received(message("execute_reply", request(conversation)))

    if state in (State.BUSY, State.ASKING):
        request(conversation)

    if state is State.ASKING:
        conversation.received(message("input_request", conversation.current_id))

    if state is State.CLOSING:
        conversation.sent(message("shutdown_request"))

    for question, (_, asked) in QUESTIONS.items():
        if state is asked:
            conversation.sent(message(question, conversation.next_id))

    if state in (State.FORKING, State.HELD):
        conversation.sent(message("checkpoint_request", conversation.next_id))

    if state is State.HELD:
        conversation.received(message("checkpoint_reply", conversation.current_id))

    assert conversation.state is state
    return conversation


def refusal(conversation: Conversation, header: dict[str, Any]) -> str:
    """Return the code that a message is refused with; it must change nothing."""
    before = (conversation.state, conversation.current_id, conversation.next_id)

    with pytest.raises(ProtocolError) as caught:
        conversation.received(header)

    assert (conversation.state, conversation.current_id, conversation.next_id) == before
    assert caught.value.detail.isascii()
    return caught.value.code


class TestOrdinary:
    def test_one_execution_after_the_other(self) -> None:
        """The path that every cell takes: ready, request, output, reply, and again."""
        conversation = Conversation(NAME)
        assert conversation.received(message("status")) is Kind.STATUS
        ids = []

        for _ in range(3):
            assert conversation.current_id is None
            ids.append(request(conversation))
            assert conversation.current_id == ids[-1]
            assert conversation.state is State.BUSY

            for kind in ("stream", "display_data", "error", "execute_result", "execute_reply"):
                assert conversation.received(message(kind, ids[-1])) is Kind.CURRENT

            assert conversation.state is State.IDLE

        assert len(set(ids)) == 3

    def test_a_question_is_answered_once(self) -> None:
        """The host may answer when it was asked, and only then."""
        conversation = in_state(State.BUSY)
        reply = message("input_reply", conversation.current_id)

        with pytest.raises(RuntimeError):
            conversation.sent(reply)

        conversation.received(message("input_request", conversation.current_id))
        conversation.sent(reply)
        assert conversation.state is State.BUSY

        with pytest.raises(RuntimeError):
            conversation.sent(reply)

    @pytest.mark.parametrize("question", QUESTIONS)
    def test_a_question_of_the_host_has_its_own_answer(self, question: str) -> None:
        """It takes its turn like an execution, and its id is spent."""
        conversation = in_state(State.IDLE)
        number = conversation.next_id
        reply, asked = QUESTIONS[question]
        conversation.sent(message(question, number))
        assert conversation.state is asked
        assert conversation.received(message(reply, number)) is Kind.ANSWER
        assert (conversation.state, conversation.current_id) == (State.IDLE, None)
        assert conversation.next_id != number

    @pytest.mark.parametrize("kind", sorted(COMMS))
    def test_a_comm_message_is_handled_like_an_execution(self, kind: str) -> None:
        """Its handlers may print, show and send; they end with a reply, and may not ask."""
        conversation = in_state(State.IDLE)
        number = conversation.next_id
        conversation.sent(message(kind, number))
        assert conversation.state is State.BUSY

        for said in ("stream", "display_data", "comm_open", "comm_msg", "comm_close"):
            assert conversation.received(message(said, number)) is Kind.CURRENT

        assert refusal(conversation, message("input_request", number)) == "order"
        assert conversation.received(message("execute_reply", number)) is Kind.CURRENT
        assert conversation.state is State.IDLE

    def test_an_interrupted_question_may_be_asked_again_or_dropped(self) -> None:
        """After an interrupt the code may ask anew, or end, without an answer to its first question."""
        conversation = in_state(State.ASKING)

        assert conversation.received(message("input_request", conversation.current_id)) is Kind.CURRENT
        assert conversation.state is State.ASKING
        assert conversation.received(message("execute_reply", conversation.current_id)) is Kind.CURRENT
        assert conversation.state is State.IDLE

    @pytest.mark.parametrize("state", [State.BUSY, State.ASKING])
    def test_calls_of_tools_are_answered_once_in_any_order(self, state: State) -> None:
        """Several may wait at once; whoever asked for input goes on waiting."""
        conversation = in_state(state)
        number = conversation.current_id

        for call, name in ((1, "search"), (2, "fetch"), (9, "search")):
            asked = {"type": "tool_request", "id": number, "name": name, "call": call}
            assert conversation.received(asked) is Kind.CURRENT
            assert conversation.state is state

        for call in (9, 1, 2):
            reply = {"type": "tool_reply", "id": number, "call": call, "ok": True}
            conversation.sent(reply)
            assert conversation.state is state

            with pytest.raises(RuntimeError):
                conversation.sent(reply)

    @pytest.mark.parametrize("state", [State.IDLE, State.BUSY, State.ASKING, State.CLOSING])
    @pytest.mark.parametrize("kind", sorted(BACKGROUND))
    def test_background_output_is_reported_apart(self, state: State, kind: str) -> None:
        """A task that outlives its cell may write at any time; it is not taken for the current cell."""
        conversation = in_state(state)

        for number in (1, 2):
            assert conversation.received(message(kind, f"{NAME}-{number}")) is Kind.BACKGROUND

        assert conversation.state is state

    def test_a_checkpoint_holds_the_context_until_it_is_let_go(self) -> None:
        """Between the two nothing of the context is legal; without a checkpoint it goes on at once."""
        conversation = in_state(State.HELD)
        conversation.sent(message("proceed", conversation.current_id))
        assert conversation.state is State.IDLE
        assert conversation.current_id is None
        conversation.sent(message("checkpoint_request", conversation.next_id))
        conversation.received({**message("checkpoint_reply", conversation.current_id), "errno": 12})
        assert conversation.state is State.IDLE

    def test_a_context_made_from_a_checkpoint_knows_the_executions_before(self) -> None:
        """Their tasks may still write in it; its own executions have names that nobody had."""
        conversation = Conversation(NAME, count=5)
        conversation.sent(message("proceed"))
        conversation.received(message("status"))
        assert conversation.received(message("stream", f"{NAME}-3")) is Kind.BACKGROUND
        assert conversation.next_id == f"{NAME}-6"


class TestHostile:
    @pytest.mark.parametrize("state", State)
    @pytest.mark.parametrize("kind", sorted(CONTEXT_TO_HOST))
    def test_every_message_in_every_state(self, state: State, kind: str) -> None:
        """H04: of all messages, in all states, for all executions, just these are legal."""
        current = {
            State.BUSY: OF_CURRENT | {"input_request"},
            State.ASKING: OF_CURRENT | {"input_request"},
            State.FORKING: {"checkpoint_reply"},
            **ANSWERS,
        }
        legal = {
            None: {"status"} if state is State.STARTING else set(),
            f"{NAME}-1": BACKGROUND if state is not State.STARTING else set(),
            f"{NAME}-2": BACKGROUND if state is not State.STARTING else set(),
            f"{NAME}-3": current.get(state, set()),
            f"{NAME}-4": set(),
        }

        for execution_id, kinds in legal.items():
            if (execution_id is None) != (kind == "status"):
                continue

            conversation = in_state(state)

            if kind in kinds:
                conversation.received(message(kind, execution_id))
            else:
                assert refusal(conversation, message(kind, execution_id)) == "order"

    @pytest.mark.parametrize(
        "forged",
        [
            "",
            "-1",
            "1",
            NAME,
            f"{NAME}-",
            f"{NAME}-0",
            f"{NAME}--1",
            f"{NAME}-+1",
            f"{NAME}-01",
            f"{NAME}-1 ",
            f"{NAME}- 1",
            f"{NAME}-1\n",
            f"{NAME}-1_0",
            f"{NAME}-١",
            f"{NAME}-²",
            f"{NAME}-" + "9" * 40,
            f"{NAME.upper()}-1",
            f"{'0' * len(NAME)}-1",
        ],
    )
    def test_forged_ids_are_refused(self, forged: str) -> None:
        """H04: there is one way to write the id of an earlier execution."""
        for state in (State.STARTING, State.IDLE, State.BUSY):
            assert refusal(in_state(state), message("stream", forged)) == "order"

    def test_ids_of_another_conversation_are_unknown(self) -> None:
        """One context cannot write into the executions of another."""
        other = Conversation("another")
        other.received(message("status"))

        assert refusal(in_state(State.BUSY), message("stream", request(other))) == "order"

    def test_a_second_reply_is_refused(self) -> None:
        """H04: an execution is answered once."""
        conversation = in_state(State.BUSY)
        reply = message("execute_reply", conversation.current_id)
        conversation.received(reply)

        assert refusal(conversation, reply) == "order"

    def test_a_question_without_leave_is_refused(self) -> None:
        """Code that was run without input cannot ask."""
        conversation = in_state(State.IDLE)
        execution_id = request(conversation, allow_stdin=False)

        assert refusal(conversation, message("input_request", execution_id)) == "order"
        assert conversation.received(message("execute_reply", execution_id)) is Kind.CURRENT

    def test_a_call_out_of_line_is_refused(self) -> None:
        """A tool that was not given, a number that was used, a call too many, a call from the execution before."""
        conversation = in_state(State.IDLE)
        earlier = request(conversation)
        conversation.received(message("execute_reply", earlier))
        number = request(conversation, tool_calls=2)
        call = {"type": "tool_request", "id": number, "name": "search"}

        assert refusal(conversation, {**call, "call": 1, "name": "delete"}) == "order"
        assert refusal(conversation, {**call, "call": 1, "id": earlier}) == "order"
        assert conversation.received({**call, "call": 5}) is Kind.CURRENT
        assert refusal(conversation, {**call, "call": 5}) == "order"
        assert refusal(conversation, {**call, "call": 4}) == "order"
        assert conversation.received({**call, "call": 6}) is Kind.CURRENT
        assert refusal(conversation, {**call, "call": 7}) == "order"

        conversation.received(message("execute_reply", number))
        number = request(conversation, tool_calls=0)
        assert refusal(conversation, {**call, "call": 1, "id": number}) == "order"

    @given(st.lists(st.tuples(st.sampled_from(sorted(CONTEXT_TO_HOST)), st.integers(0, 6)), max_size=60))
    def test_no_sequence_answers_twice(self, said: list[tuple[str, int]]) -> None:
        """Whatever a guest says, each execution gets at most one reply, and results only before it."""
        conversation = Conversation(NAME)
        answered: set[str] = set()

        for kind, number in said:
            if conversation.state is State.IDLE:
                request(conversation)

            execution_id = None if kind == "status" else f"{NAME}-{number}"
            try:
                belongs_to = conversation.received(message(kind, execution_id))
            except ProtocolError:
                continue

            assert (belongs_to is Kind.BACKGROUND) == (execution_id in answered)
            assert belongs_to is not Kind.BACKGROUND or kind in BACKGROUND

            if kind == "execute_reply":
                answered.add(execution_id or "")


class TestHost:
    def test_the_host_is_held_to_the_order_too(self) -> None:
        """A mistake of ours shows at once and is not blamed on the guest."""
        for state in State:
            for kind in (
                *("execute_request", "input_reply", "shutdown_request", "stream", "tool_reply"),
                *("checkpoint_request", "proceed"),
                *QUESTIONS,
                *COMMS,
            ):
                for execution_id in (None, f"{NAME}-2", f"{NAME}-3", f"{NAME}-4"):
                    legal = {
                        (State.IDLE, "execute_request", f"{NAME}-3"),
                        (State.IDLE, "shutdown_request", None),
                        (State.ASKING, "input_reply", f"{NAME}-3"),
                        (State.IDLE, "checkpoint_request", f"{NAME}-3"),
                        (State.HELD, "proceed", f"{NAME}-3"),
                        (State.STARTING, "proceed", None),
                        *((State.IDLE, request, f"{NAME}-3") for request in (*QUESTIONS, *COMMS)),
                        # Which tools an execution was given, and which calls wait, says a test of its own.
                    }
                    conversation = in_state(state)
                    header = {**message(kind, execution_id), "allow_stdin": False}

                    if (state, kind, execution_id) in legal:
                        conversation.sent(header)
                        continue

                    with pytest.raises(RuntimeError):
                        conversation.sent(header)

                    assert conversation.state is state

    @pytest.mark.parametrize("name", ["", "x" * 41])
    def test_a_name_has_a_length(self, name: str) -> None:
        """The ids made of it fit into a message for ever."""
        with pytest.raises(ValueError, match="characters"):
            Conversation(name)

        assert len(Conversation("x" * 40).next_id.partition("-")[0]) + 1 + len(str(2**63)) <= MAX_ID_CHARS

    def test_memory_does_not_grow(self) -> None:
        """A conversation that lasts for years is as small as a new one."""
        conversation = in_state(State.IDLE)
        slots = Conversation.__slots__

        for _ in range(10_000):
            conversation.received(message("execute_reply", request(conversation)))

        assert conversation.received(message("stream", f"{NAME}-1")) is Kind.BACKGROUND
        assert sum(sys.getsizeof(getattr(conversation, slot)) for slot in slots) < 1000
