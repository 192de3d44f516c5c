"""`fumehood chat`: talk to a model that runs code in a sandbox.

It only turns options into an agent, a sandbox and a session; the chat itself is `fumehood.llm.terminal`.
"""

from __future__ import annotations

import os
import sys

from fumehood.cli.extras import require_extra
from fumehood.cli.hints import error_text
from fumehood.cli.options import check_file, check_folder, open_sandbox, sandbox_options
from fumehood.cli.parser import Command, Option, Options, PathWord
from fumehood.cli.renewal import kept_alive
from fumehood.cli.terminal import patience
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.values.guest_paths import DATA_PATH

_NAMES = "openai:NAME (Responses), openai-chat:NAME (Chat Completions) or anthropic:NAME (Messages)"

# The environment variables that may hold the key of a provider, by the part of a model's name before the colon.
_OPENAI_KEYS = ("OPENAI_API_KEY",)
_KEYS = {
    "openai": _OPENAI_KEYS,
    "openai-chat": _OPENAI_KEYS,
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
}
# The SDKs send no request without a key; most servers of one's own take any.
_ANY_KEY = "none"


def run(options: Options) -> int:
    """Chat until the end; return the exit code."""
    require_extra("chat", "rich", command="chat")
    # Imported late: nothing else of the command line needs a model or a terminal in colours.
    from fumehood.llm.agent import Agent
    from fumehood.llm.providers.choose import choose_provider
    from fumehood.llm.terminal.session import open_session

    model = options.model or os.environ.get("FUMEHOOD_MODEL")

    if not model:
        raise InvalidArgumentError(
            field="--model", value=..., allowed=f"{_NAMES}; FUMEHOOD_MODEL may name it too"
        )

    api_key = _checked_key(model, options.base_url)

    # Checked before a sandbox is started.
    with naming_arguments({"model": "--model", "base_url": "--base-url"}):
        choose_provider(model, base_url=options.base_url)

    if options.output is not None:
        check_folder(options.output, "--output")

    if options.save:
        check_file(options.save, "--save")

    _edit_lines()

    with patience("starting a sandbox"):
        # The system prompt names this folder for data.
        sandbox = open_sandbox(options, folder=DATA_PATH)

    with (
        sandbox,
        kept_alive(sandbox),
        Agent(
            model,
            sandbox=sandbox,
            base_url=options.base_url,
            api_key=api_key,
            fenced=options.fenced,
            images=not options.no_images,
            instructions=options.instructions,
        ) as agent,
    ):
        session = open_session(
            agent,
            sandbox,
            output=options.output,
            notebook=options.save,
            environment=os.environ,
            error_text=error_text,
        )
        was_answered = session.run()

    # A user at a terminal has seen the failure; a script has only the exit code.
    return 0 if was_answered or sys.stdin.isatty() else 1


def _edit_lines() -> None:
    """Make the arrow keys work in `input`, if this Python has readline."""
    try:
        import readline  # noqa: F401 - importing it is what enables it
    except ImportError:
        return


def _checked_key(model: str, base_url: str | None) -> str | None:
    """Return the key to give to the SDK, or None where it finds one; a server of one's own may need no key, or any.

    Raises:
        InvalidArgumentError: The model is not named with its API, or the variable that holds the key is not set.
    """
    dialect, _, name = model.partition(":")

    if dialect not in _KEYS or not name.strip():
        raise InvalidArgumentError(field="--model", value=model, allowed=_NAMES)

    keys = _KEYS[dialect]

    if any(os.environ.get(one) for one in keys):
        return None

    if base_url or os.environ.get(f"{dialect.partition('-')[0].upper()}_BASE_URL"):
        return _ANY_KEY

    raise InvalidArgumentError(
        field=keys[0], value=..., allowed=f"the key of {model!r}; a server of your own is named by --base-url"
    )


CHAT = Command(
    "chat",
    run,
    brief="talk to a model that runs code in a sandbox",
    about="Talk to a model that runs code in a sandbox. Ctrl-C interrupts an answer, Ctrl-D ends the chat, "
    "/help lists its commands. Keys come from OPENAI_API_KEY and ANTHROPIC_API_KEY.",
    params=[
        Option(["--model"], metavar="DIALECT:NAME", help=f"{_NAMES}; default: FUMEHOOD_MODEL"),
        Option(["--base-url"], metavar="URL", help="address of a server that speaks the same dialect"),
        Option(["--fenced"], is_flag=True, help="the model has no tool calls: it writes code into its text"),
        Option(["--no-images"], is_flag=True, help="the model cannot see: send it no pictures"),
        Option(["--instructions"], default="", metavar="TEXT", help="what you add to the system prompt"),
        Option(["--save"], type=PathWord(), metavar="PATH", help="write the chat as a notebook at its end"),
        Option(
            ["--output"],
            type=PathWord(is_folder=True),
            metavar="DIR",
            help="bring new files here at the end of the chat, and pictures (default: pictures only, "
            "to the current folder)",
        ),
        *sandbox_options(files_go_to=DATA_PATH),
    ],
)
