"""Models of the routes of ports."""

from __future__ import annotations

from pydantic import Field

from fumehood.server.schemas.describe import model_of
from fumehood.server.schemas.fields import Body
from fumehood.values.sandbox import PortAddress


class SignPort(Body):
    """How long an address opens a port."""

    expires_in_seconds: float = Field(default=3600, gt=0, le=86_400 * 30)


PortAnswer = model_of(PortAddress)
