"""Models of the routes of saved states.

They bound and describe; a body becomes a request of the port.
"""

from __future__ import annotations

from pydantic import Field

from fumehood.server.schemas.describe import model_of
from fumehood.server.schemas.sandboxes import NewSandbox
from fumehood.values.requests import Loaded, LoadRequest

LoadedAnswer = model_of(Loaded)


class LoadOptions(NewSandbox):
    """The options of a sandbox that is made from a saved state."""

    keep_template: bool = Field(
        True, description="Start from the template that it was saved with; false: from `template`."
    )

    files_only: bool = Field(False, description="Begin with the files alone, without variables.")

    def request(self) -> LoadRequest:
        """Returns the request of the port."""
        return LoadRequest(spec=self.spec(), keep_template=self.keep_template, files_only=self.files_only)
