"""What the routes of ports take and give."""

from __future__ import annotations

from pydantic import BaseModel, Field

from fumehood.server.schemas.fields import Body


class SignPort(Body):
    """How long an address should open a port."""

    expires_in_seconds: float = Field(default=3600, gt=0, le=86_400 * 30)


class PortUrl(BaseModel):
    """Where a port of a sandbox is reached."""

    path: str = Field(description="Path on this server; it needs no token until it expires.")
    host: str | None = Field(description="Host name of the port, when the server has a domain.")
