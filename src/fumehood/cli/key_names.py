"""The names of a server's keys, for tables that have their ids.

With a key that may not list keys, ids are shown; the command does not fail.
"""

from __future__ import annotations

from collections.abc import Mapping

from fumehood.errors import FumehoodError
from fumehood.text import visible_line


def names_of_keys(url: str | None, api_key: str | None) -> Mapping[str, str]:
    """Return the shown name of each key, by id: its name followed by the id, which filters take.

    The name alone could be that of another key, or another key's id.

    Args:
        url: The server; None: FUMEHOOD_URL.
        api_key: The token; None: FUMEHOOD_API_KEY.
    """
    # Imported late: it is the whole client.
    from fumehood.assemble import ask_server

    try:
        keys = ask_server(url, api_key, "GET", "/v1/keys")["items"]
    except FumehoodError:
        return {}

    return {key["id"]: f"{visible_line(key['name'])} ({key['id']})" for key in keys}
