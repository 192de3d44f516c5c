"""The way out of an error in the words of the command line: commands and options, not calls of Python or HTTP.

The errors of the library name calls of Python and HTTP; this module alone names the commands that help with the same
errors. It changes no message.
"""

from __future__ import annotations

from collections.abc import Mapping

from fumehood.errors import FumehoodError, SandboxClosedError

_LIVING = (
    "`fumehood ps` lists the living ones, `fumehood records` those that have ended, where records are kept"
)
# By the code of the error. `tests/rules/test_errors.py` finds errors whose own hint names a call and that are missing.
_HINTS: Mapping[str, str] = {
    "sandbox_not_found": _LIVING,
    "sandbox_paused": "resume it in the console: `fumehood console` prints its address",
    "sandbox_not_started": "",
    "context_not_found": "`fumehood logs SANDBOX` shows those that live, `fumehood records show SANDBOX` those "
    "of an ended one",
    "checkpoint_not_found": "`fumehood compare SANDBOX` lists those that there are; the oldest is dropped when "
    "there are too many",
    "command_timeout": "give it more time with `--timeout SECONDS`",
    "process_not_found": "`fumehood logs SANDBOX` shows the commands that ran, and how they ended",
    "download_failed": "`--overwrite` replaces files that are there",
    "path_not_found": "relative paths start at /home/user; `fumehood exec SANDBOX --bash 'ls -l'` shows what is there",
    "path_not_text": "copy it with `fumehood cp SANDBOX:PATH FILE`",
    "file_too_large": "copy it with `fumehood cp SANDBOX:PATH FILE`",
    "record_not_found": "`fumehood records` lists those that are kept; a server keeps them only with `--records keep`, "
    "for a time, and the latest ones",
    "execution_not_found": "`fumehood logs SANDBOX` shows those that are kept",
    "disk_full": "remove files, or start the sandbox with a larger `--disk`",
    "unauthenticated": "give the token with `--api-key`, or set FUMEHOOD_API_KEY; `fumehood serve` says at its start "
    "where its token is",
    "model_authentication": "set OPENAI_API_KEY or ANTHROPIC_API_KEY; most local servers take any",
    "model_rate_limit": "wait; the conversation is as it was before this request",
    "model_context_length": "begin a new one with /reset: variables and files of the sandbox stay",
    "model_request": "check the model's name and `--base-url`; a model without tool calls wants `--fenced`, "
    "one without eyes `--no-images`",
    "model_connection": "check `--base-url` and the network; the conversation is as it was before this request",
    "no_host_name": "start the server with `--domain`",
    "no_screenshot": "build its template with `fumehood template build NAME --display`, from an image or a machine "
    "with Xvfb",
}
_HINTS_OF_ENDED: Mapping[str, str] = {
    "expired": f"it lives longer with `--lifetime`, or `fumehood load --timeout`; {_LIVING}",
    "policy": "`fumehood records show SANDBOX --audit` shows what it did, where records are kept",
    "adopted": "use the id of the one that it was forked from",
    "died": f"it may have needed more `--memory`; {_LIVING}",
}


class OwnHint(str):
    """A hint that a command has written because it knows more than the kind of the error; it is printed as it is."""

    __slots__ = ()


def hint_of(error: FumehoodError) -> str:
    """Return the hint for an error, in terms of the command line."""
    if isinstance(error.hint, OwnHint):
        return error.hint

    if isinstance(error, SandboxClosedError):
        return _HINTS_OF_ENDED.get(error.reason, _LIVING)

    return _HINTS.get(error.code, error.hint)


def error_text(error: Exception) -> str:
    """Return the text to print for an error: its message, and its hint if there is one."""
    if not isinstance(error, FumehoodError):
        return str(error)

    hint = hint_of(error)
    return f"{error.message}\n\nhint: {hint}" if hint else error.message
