"""Checks which requests of browsers a guest's web server may answer in this server's own origin.

A page of a guest has an opaque origin there (`sandbox` in its policy): its own requests are `cross-site`. A script
requested as `same-origin` would run in one of our documents, with its login; none of these needs a script of a guest.
Browsers send these headers over https and to this machine only; elsewhere the policies of our own pages are the only
protection.
"""

from __future__ import annotations

from starlette.datastructures import Headers

from fumehood.errors import ForbiddenError

# Kinds of requests whose responses run in the requesting document, or style it.
_PARTS_OF_A_DOCUMENT = frozenset(
    {
        "audioworklet",
        "json",
        "paintworklet",
        "script",
        "serviceworker",
        "sharedworker",
        "style",
        "worker",
        "xslt",
    }
)


def check_is_no_part_of_ours(headers: Headers) -> None:
    """Checks that a browser does not ask for a part of a document of this server.

    Raises:
        ForbiddenError: The response would be used as a script, a worker or a style of a document in this server's own
            origin.
    """
    sites = headers.getlist("sec-fetch-site")
    wanted = headers.getlist("sec-fetch-dest")

    if "same-origin" in sites and not _PARTS_OF_A_DOCUMENT.isdisjoint(wanted):
        raise ForbiddenError(
            reason=f"what a sandbox serves is no {wanted[0]} of a page of this server",
            hint="open the address itself",
        )
