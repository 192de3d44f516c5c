"""Questions to a context and their answers, in the words of the wire.

Runs in the host process. An answer is the guest's: what has passed the message table is also checked here
against the question, and what cannot be an answer to it is a breach of the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fumehood.backends.questions import (
    Answer,
    CheckComplete,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CompleteCode,
    InspectCode,
    Question,
)
from fumehood.host.awaited import Awaited
from fumehood_wire import messages, payloads
from fumehood_wire.frames import ProtocolError

Header = dict[str, Any]


@dataclass(slots=True)
class Asked:
    """A question that a context works on; its answer becomes None when the context is gone."""

    question: Question
    answer: Awaited[Answer | None]

    def finish(self, header: Header, payload: bytes) -> None:
        """Takes the reply.

        Raises:
            ProtocolError: It cannot be the answer to this question.
        """
        self.answer.come(read_answer(self.question, header, payload))

    def lose(self) -> None:
        """The context is gone."""
        self.answer.come(None)


def question_header(question: Question) -> Header:
    """Returns the header of the request, but for its id; the payload is the code."""
    match question:
        case CompleteCode():
            return {"type": "complete_request", "cursor_pos": question.cursor}
        case InspectCode():
            return {
                "type": "inspect_request",
                "cursor_pos": question.cursor,
                "detail_level": question.detail,
            }
        case CheckComplete():
            return {"type": "is_complete_request"}


def read_answer(question: Question, header: Header, payload: bytes) -> Answer:
    """Returns the answer in a reply that has passed `check` and belongs to the question.

    Raises:
        ProtocolError: It cannot be the answer to this question.
    """
    match question:
        case CompleteCode():
            start, end = header["cursor_start"], header["cursor_end"]

            if not start <= end <= len(question.code):
                raise ProtocolError("field", f"complete_reply: from {start} to {end} is not in the code")

            return CodeCompletion(matches=tuple(payloads.parse_matches(payload)), start=start, end=end)
        case InspectCode():
            parts = messages.split_parts(header, payload)
            return CodeInspection(data={mime: messages.read_text(content) for mime, content in parts})
        case CheckComplete():
            return CodeCompleteness(status=header["status"], indent=header["indent"])


def empty_answer(question: Question) -> Answer:
    """Returns the answer for when there is none."""
    match question:
        case CompleteCode():
            return CodeCompletion(matches=(), start=question.cursor, end=question.cursor)
        case InspectCode():
            return CodeInspection()
        case CheckComplete():
            return CodeCompleteness(status="unknown")
