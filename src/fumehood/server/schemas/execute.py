"""Models of the stateless routes.

Every bound of a body is in the description, so that a client need not find it by trying.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError, WithJsonSchema, model_validator

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.server.schemas.base import Body, Code, Envs, ExecutionSeconds, GuestPath, Labels, Name, model_of
from fumehood.server.schemas.executions import ExecutionAnswer
from fumehood.server.schemas.kernel_language import KernelLanguage
from fumehood.server.schemas.sandboxes import NetworkField, NewLimits, network_of
from fumehood.values.languages import Language
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.sandbox import IsolationLevel
from fumehood.values.stateless import StatelessReply, StatelessRequest

_MAX_FILES = 1000
MAX_BATCH = 10_000
_MAX_CONCURRENCY = 1000
# Runs that a server of a cluster begins together on a machine.
MOST_GROUPED = 64
GROUP_NAME = r"^[0-9a-f]{24}$"


class FileContent(Body):
    """The content of a file: either text, or bytes as base64."""

    text: str | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> FileContent:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give either `text` or `base64`")

        return self

    def content(self, path: str) -> bytes:
        """Returns the bytes; raises InvalidArgumentError if the text is not base64."""
        if self.text is not None:
            return self.text.encode()

        try:
            return base64.b64decode(self.base64 or "", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArgumentError(
                field=f"files[{path!r}].base64", value="(not shown)", allowed="base64"
            ) from None


class ExecuteBody(Body):
    """One piece of code to run in a sandbox of its own, which is killed afterwards."""

    code: Code = Field(description="The code.")
    language: Language | KernelLanguage = "python"
    template: Name = Field(default="default", description="What it starts from.")
    stdin: str | None = Field(
        default=None, max_length=MIB, description="What `input()` and the standard input get; null: nothing."
    )
    files: dict[GuestPath, FileContent] = Field(
        default_factory=dict, max_length=_MAX_FILES, description="Written before the code runs, by path."
    )
    outputs: list[GuestPath] = Field(
        default_factory=list,
        max_length=_MAX_FILES,
        description="Files, or folders with all that is in them, that the answer brings back.",
    )
    envs: Envs = Field(default_factory=dict, description="Its environment.")
    timeout_seconds: ExecutionSeconds | None = Field(
        default=None, description="Time of the execution; null: `limits.wall_seconds`."
    )
    queue_timeout_seconds: float | None = Field(
        default=None, ge=0, le=3600, description="How long to wait to be begun; null: the server's setting."
    )
    limits: NewLimits = Field(default_factory=NewLimits, description="What it may use.")
    strict: bool = Field(default=False, description="Refuse to run when a layer of isolation is missing.")
    isolation: IsolationLevel | None = Field(
        default=None, description="The weakest isolation that will do, within what the server allows."
    )
    network: NetworkField = Field(
        default="none", description="What it may reach, within what the server and the key allow."
    )

    labels: Labels = Field(
        default_factory=dict,
        description="Labels that its machine must have, such as `zone`; machines of a cluster have labels.",
    )

    def request(self) -> StatelessRequest:
        """Returns the request of the port."""
        return StatelessRequest(
            spec=SandboxSpec(
                template=self.template,
                limits=self.limits.limits(),
                chosen_limits=self.limits.chosen(),
                envs=self.envs,
                strict=self.strict,
                isolation=self.isolation,
                network=network_of(self.network),
                labels=self.labels,
            ),
            code=ExecuteRequest(code=self.code, language=self.language, wall_seconds=self.timeout_seconds),
            stdin=self.stdin,
            files={path: content.content(path) for path, content in self.files.items()},
            outputs=tuple(self.outputs),
        )


class BatchBody(Body):
    """Several pieces of code, each in a sandbox of its own."""

    # Thousands of them are checked piece by piece, by `item_of`: at once they would keep the loop for seconds.
    requests: list[
        Annotated[dict[str, Any], WithJsonSchema({"$ref": "#/components/schemas/ExecuteBody"})]
    ] = Field(min_length=1, max_length=MAX_BATCH)
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=_MAX_CONCURRENCY,
        description="How many run at once; null: as many as the server and the key allow.",
    )
    timeout_seconds: ExecutionSeconds | None = Field(
        default=None,
        description="Time for all of it: what has not begun by then is refused with `queue_timeout`; null: none.",
    )
    resumable: bool = Field(
        default=False,
        description="Go on when the connection breaks off. The first line has the `batch_id`; "
        "`GET /v1/execute/batch/{batch_id}?cursor=` reads on behind the last line that came.",
    )


class GroupedRunBody(Body):
    """One run, and the request to which it belongs."""

    request: ExecuteBody = Field(description="The run.")
    request_id: str = Field(max_length=255, description="Given to the lines that are logged meanwhile.")
    trace: str = Field(default="", max_length=255, description="Its trace, as a `traceparent` header has it.")


class RunGroupBody(Body):
    """Runs that begin together."""

    name: str = Field(pattern=GROUP_NAME, description="A new name, by which one of them can be ended.")
    runs: list[GroupedRunBody] = Field(min_length=1, max_length=MOST_GROUPED, description="The runs.")


def item_of(index: int, fields: dict[str, Any]) -> ExecuteBody:
    """Returns an item of a batch.

    Raises:
        RequestValidationError: The item's fields have the wrong form; the error names the item.
    """
    try:
        return ExecuteBody.model_validate(fields)
    except ValidationError as error:
        faults = [
            {**fault, "loc": ("body", "requests", index, *fault["loc"])}
            for fault in error.errors(include_url=False)
        ]
        raise RequestValidationError(faults) from None


# Made from the values that are written, so that the description cannot fall behind them.
ExecuteReply = model_of(StatelessReply, other={"execution": ExecutionAnswer})
