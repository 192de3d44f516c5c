"""The network of a sandbox that a model makes: none, the package index, or everything public.

Runs in the process of the MCP server; it only translates names. The server of the sandboxes decides which network a
caller may use; over stdio the command line does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from fumehood import AsyncSandbox, Network, NetworkForbiddenError
from fumehood.llm.error_text import Surroundings
from fumehood.values.network import NETWORK_LEVELS

NetworkWord = Literal["none", "pip", "internet"]
_NETWORKS = {"none": Network(), "pip": Network.pip(), "internet": Network(internet=True)}

NetworkArgument = Annotated[
    NetworkWord,
    Field(description="pip: the package index alone"),
]


def network_named(word: NetworkWord, most: str) -> Network:
    """Return the network of this name.

    Args:
        word: The name.
        most: The most network that may be given: none, pip, listed or internet.

    Raises:
        NetworkForbiddenError: The network exceeds the allowed one.
    """
    network = _NETWORKS[word]

    if NETWORK_LEVELS.index(network.level) > NETWORK_LEVELS.index(most):
        raise NetworkForbiddenError(asked=word, allowed=most)

    return network


def surroundings(network: Network, most: str, tools: Collection[str]) -> Surroundings:
    """Return the facts for hints about a sandbox, in terms of the tools.

    Args:
        network: The network of the sandbox.
        most: The most network that a sandbox of the caller may be given: none, pip, listed or internet.
        tools: The names of the tools that are served.
    """
    can_install = network.internet or "pip" in network.presets
    to_install = to_reach = ""

    if "install_packages" not in tools or not (can_install or "create_sandbox" in tools):
        # Hints name no tool that is not there.
        pass
    elif can_install:
        to_install = "Install it with install_packages, then run this again, or use a package that is there."
    elif NETWORK_LEVELS.index(most) >= NETWORK_LEVELS.index(_NETWORKS["pip"].level):
        to_install = (
            "To install it, make a sandbox with create_sandbox and network `pip`, then call install_packages; "
            "variables and files of this one do not go with it."
        )

    if network.level != "internet" and most == "internet" and "create_sandbox" in tools:
        to_reach = (
            "This sandbox does not reach that address: one made with create_sandbox and network `internet` does, "
            "without the variables and files of this one. Otherwise use the files that are there."
        )

    return Surroundings(network=network, to_install=to_install, to_reach=to_reach)


async def has_network(sandbox: AsyncSandbox) -> bool:
    """Return whether a sandbox can reach anything outside."""
    return (await sandbox.get_info()).network.level != "none"
