"""Many pieces of code, each in a sandbox of its own: `fumehood.run_many` and its async version.

Runs in the caller's process, over the port only. At a server, thousands of runs travel in one request, and a connection
that breaks off is made again without running anything twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from fumehood.api.handle import default_backend, named_backend
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.portal import Turn
from fumehood.tracebacks import ending_at_caller
from fumehood.values.execution import Execution
from fumehood.values.languages import Language
from fumehood.values.limits import LimitsChoice, read_limits
from fumehood.values.network import NetworkChoice, read_network
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.sandbox import Isolation, IsolationLevel
from fumehood.values.stateless import StatelessReply, StatelessRequest
from fumehood.values.template import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One piece of code for `run_many`, and the sandbox that it runs in.

    Attributes:
        code: The code.
        language: Its language.
        stdin: The standard input, which `input()` reads too; None: empty, and `input()` raises EOFError.
        files: Text or bytes by path, written before the code runs.
        outputs: Paths of files, or of folders with their content, to return in the outcome.
        template: The template of the sandbox.
        limits: Its limits; `wall_seconds` is the time limit of the code.
        envs: Its environment.
        strict: Whether to refuse to run if a layer of isolation is missing.
        isolation: The weakest isolation that is accepted.
        network: The network that it may reach.
    """

    code: str
    language: Language | str = "python"
    stdin: str | None = None
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    template: str | Template = "default"
    limits: LimitsChoice | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    isolation: IsolationLevel | None = None
    network: NetworkChoice = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of one run of `run_many`.

    Attributes:
        index: The number of the run, from 0.
        files: The content of its `outputs` by path.
        skipped: Paths of `outputs` that did not fit, or could not be read.
        isolation: The isolation of its sandbox; None if the run failed before the sandbox was made.
        failure: The error if there is no execution, because no sandbox could be started or it ended in the middle;
            otherwise None. Code that fails has an execution with an `error`.
    """

    index: int
    files: Mapping[str, bytes] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    isolation: Isolation | None = None
    failure: FumehoodError | None = None
    reply: Execution | None = field(default=None, repr=False)

    @property
    def execution(self) -> Execution:
        """The execution; raises `failure` if there is none."""
        if self.reply is not None:
            return self.reply

        assert self.failure is not None, "a run has an execution or a failure"
        raise self.failure


@ending_at_caller
async def arun_many(
    runs: Iterable[str | Run],
    *,
    concurrency: int | None = None,
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
) -> AsyncGenerator[RunOutcome, None]:
    """Run many pieces of code, each in a sandbox of its own, and yield each outcome as soon as it is available.

    A failed run does not affect the others. Leaving the loop early ends the active runs and starts no further one.

    Args:
        runs: Code, or `Run`s for code with files, input, limits and more. A list goes to a server in few requests; from
            any other iterable the next run is taken when there is room for it.
        concurrency: How many run at the same time; None: twice as many as there are processors, or as many as the
            server allows.
        url: The address of a server; None: FUMEHOOD_URL, or this process.
        api_key: Its token; None: FUMEHOOD_API_KEY.
        backend: The backend to use, instead of `url` and `api_key`.

    Raises:
        InvalidArgumentError: A run is refused, before any is begun if `runs` is a list.
    """
    if isinstance(runs, (str, Mapping)) or not isinstance(runs, Iterable):
        raise InvalidArgumentError(field="runs", value=runs, allowed="an iterable of code or of Run(...)")

    chosen = named_backend(url, api_key, backend) or default_backend()
    requests: Iterable[StatelessRequest] = map(request_of, runs)

    # A server takes all runs of a sequence at once.
    if isinstance(runs, Sequence):
        requests = [*requests]

    async with aclosing(chosen.run_many(requests, concurrency)) as answers:
        async for index, answer in answers:
            yield _outcome(index, answer)


@ending_at_caller
def run_many(
    runs: Iterable[str | Run],
    *,
    concurrency: int | None = None,
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
) -> Iterator[RunOutcome]:
    """Run many pieces of code, each in a sandbox of its own, and yield each outcome as soon as it is available.

    A failed run does not affect the others. Leaving the loop early ends the active runs and starts no further one:

        for outcome in run_many(["6 * 7", "1 / 0"]):
            print(outcome.index, outcome.execution.text, outcome.execution.error)

    Args:
        runs: Code, or `Run`s for code with files, input, limits and more. A list goes to a server in few requests; from
            any other iterable the next run is taken when there is room for it.
        concurrency: How many run at the same time; None: twice as many as there are processors, or as many as the
            server allows.
        url: The address of a server; None: FUMEHOOD_URL, or this process.
        api_key: Its token; None: FUMEHOOD_API_KEY.
        backend: The backend to use, instead of `url` and `api_key`.

    Raises:
        InvalidArgumentError: A run is refused, before any is begun if `runs` is a list.
    """
    outcomes = arun_many(runs, concurrency=concurrency, url=url, api_key=api_key, backend=backend)
    return Turn().iterate(outcomes)


def request_of(run: str | Run) -> StatelessRequest:
    """Return the request of a run.

    Raises:
        InvalidArgumentError: A value of the run is refused.
    """
    if isinstance(run, str):
        run = Run(code=run)
    elif not isinstance(run, Run):
        raise InvalidArgumentError(field="runs", value=run, allowed="code, or Run(code=...)")

    return StatelessRequest(
        spec=SandboxSpec(
            template=run.template,
            limits=read_limits(run.limits),
            envs=run.envs,
            strict=run.strict,
            isolation=run.isolation,
            network=read_network(run.network),
        ),
        code=ExecuteRequest(code=run.code, language=run.language),
        stdin=run.stdin,
        files={
            path: content.encode() if isinstance(content, str) else content
            for path, content in run.files.items()
        },
        outputs=tuple(run.outputs),
    )


def _outcome(index: int, answer: StatelessReply | FumehoodError) -> RunOutcome:
    if isinstance(answer, FumehoodError):
        return RunOutcome(index=index, failure=answer)

    return RunOutcome(
        index=index,
        files=answer.files,
        skipped=answer.skipped,
        isolation=answer.isolation,
        reply=answer.execution,
    )
