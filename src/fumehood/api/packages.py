"""The command that `install` runs inside a sandbox: pip, with requirements that cannot be read as its options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fumehood.errors import CommandExitError, InvalidArgumentError
from fumehood.text import visible_line
from fumehood.values.network import EgressRecord, Network

MAX_PACKAGES = 50
# What begins with a letter or a digit is no option of pip.
REQUIREMENT = r"^[A-Za-z0-9][^\x00-\x1f\x7f]{0,199}$"
# As a whole: a `$` of Python's would let a final line break pass.
_IS_REQUIREMENT = re.compile(REQUIREMENT).fullmatch
_PIP = [
    "python",
    "-m",
    "pip",
    "install",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
    "--",
]


def install_command(packages: Sequence[str | Sequence[str]]) -> list[str]:
    """Return the command that installs the packages, given one by one or as one list, as a list of arguments.

    Raises:
        InvalidArgumentError: The list is empty, or an item is not a requirement.
    """
    if isinstance(packages, str):
        # Each letter would be a package of that name, and there are such.
        allowed = f"a list of names, such as [{visible_line(repr(packages))}]"
        raise InvalidArgumentError(field="packages", value=packages, allowed=allowed)

    names = packages[0] if len(packages) == 1 and isinstance(packages[0], list | tuple) else packages

    if not 1 <= len(names) <= MAX_PACKAGES:
        allowed = f"1 to {MAX_PACKAGES} names of packages, one by one or as one list, such as 'polars>=1'"
        raise InvalidArgumentError(field="packages", value=f"{len(names)} names", allowed=allowed)

    checked = []

    for package in names:
        if not isinstance(package, str) or not _IS_REQUIREMENT(package):
            allowed = "names that begin with a letter or a digit, such as 'polars>=1'"
            raise InvalidArgumentError(field="packages", value=package, allowed=allowed)

        checked.append(package)

    return [*_PIP, *checked]


def check_installable(network: Network) -> None:
    """Refuse to install into a sandbox that can reach no index.

    Raises:
        InvalidArgumentError: The sandbox has no network.
    """
    if network.level == "none":
        raise InvalidArgumentError(
            field="network",
            value="none",
            allowed="'pip' or 'internet' where packages are to be installed, as in Sandbox(network='pip')",
            problem="nothing can be installed in this sandbox: it has no network",
        )


def explain_denial(error: CommandExitError, records: Sequence[EgressRecord]) -> None:
    """Name the denial of the network in the hint of pip's error: pip only says that it has found no version.

    Args:
        error: The error; returned unchanged if the last connection was not denied.
        records: The connections of the sandbox, the last of which pip has made.
    """
    last = max(records, key=lambda record: record.at, default=None)

    if last is not None and last.verdict == "denied":
        place = f"{visible_line(last.name)}:{last.port}"
        error.hint = (
            f"the sandbox's network denied {place}: {visible_line(last.rule)}. An index of your own may need its "
            "host or address listed: Network(presets=['pip'], allow=['192.0.2.7'])"
        )
