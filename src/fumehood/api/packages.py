"""What `install` runs inside a sandbox: pip, with requirements that cannot be read as its options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fumehood.errors import InvalidArgumentError
from fumehood.values.network import Network

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


def install_command(packages: Sequence[str]) -> list[str]:
    """Return the command that installs these packages, as a list of arguments.

    Raises:
        InvalidArgumentError: There is none, or one is no requirement.
    """
    if not 1 <= len(packages) <= MAX_PACKAGES:
        allowed = f"1 to {MAX_PACKAGES} names"
        raise InvalidArgumentError(field="packages", value=f"{len(packages)} names", allowed=allowed)

    for package in packages:
        if not isinstance(package, str) or not _IS_REQUIREMENT(package):
            allowed = "names that begin with a letter or a digit, such as 'polars>=1'"
            raise InvalidArgumentError(field="packages", value=package, allowed=allowed)

    return [*_PIP, *packages]


def check_installable(network: Network) -> None:
    """Refuse to install into a sandbox that can reach no index.

    Raises:
        InvalidArgumentError: It has no network.
    """
    if network.level == "none":
        raise InvalidArgumentError(
            field="network",
            value="none",
            allowed="'pip' or 'internet' where packages are to be installed, as in Sandbox(network='pip')",
            problem="nothing can be installed in this sandbox: it has no network",
        )
