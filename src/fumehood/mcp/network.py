"""What a sandbox made by a model may reach: nothing, the package index, or everything public.

Runs in the process of the MCP server; names only. Whether a caller may have it is decided where its sandboxes live,
and over stdio by whoever started the server.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fumehood import AsyncSandbox, Network, NetworkForbiddenError

NetworkWord = Literal["none", "packages", "internet"]
# The least first; so are they called where a server is told the most that it may give.
LEVELS = ("none", "listed", "internet")
_NETWORKS = {"none": Network(), "packages": Network.pip(), "internet": Network(internet=True)}

NetworkArgument = Annotated[
    NetworkWord,
    Field(
        description="What it may reach: none, packages (the package index alone, for install_packages), or internet"
    ),
]


def network_named(word: NetworkWord, most: str) -> Network:
    """Return the network of this name.

    Args:
        word: The name.
        most: The most that may be given: none, listed or internet.

    Raises:
        NetworkForbiddenError: It is more than that.
    """
    network = _NETWORKS[word]

    if LEVELS.index(network.level) > LEVELS.index(most):
        raise NetworkForbiddenError(asked=word, allowed=most)

    return network


async def has_network(sandbox: AsyncSandbox) -> bool:
    """Tell whether a sandbox can reach anything outside."""
    return (await sandbox.get_info()).network.level != "none"
