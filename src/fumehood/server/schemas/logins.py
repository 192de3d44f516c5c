"""Models of logins, and of the caller of a request and its usage."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, Field

from fumehood.server.principal import Principal
from fumehood.server.schemas.base import Body
from fumehood.server.schemas.keys import Policy, policy_of
from fumehood.storage.logins import Login


class NewLogin(Body):
    """The credential that begins a login: a token, or a code that was made for it."""

    token: str | None = Field(
        default=None, max_length=512, description="The owner's token, or that of a key."
    )
    code: str | None = Field(
        default=None, max_length=100, description="The code of an address with `#login=CODE`."
    )


class LoginAnswer(BaseModel):
    """A login, without its cookie."""

    id: str
    key_id: str
    created_at: datetime
    last_used_at: datetime
    ends_at: datetime = Field(description="At the latest; it ends earlier when it is not used.")
    user_agent: str
    is_current: bool = Field(description="Whether the request came with it.")

    @classmethod
    def of(cls, login: Login, current: Login | None) -> LoginAnswer:
        """Returns the answer for a stored login; `current` is the caller's own."""
        return cls(
            id=login.id,
            key_id=login.key_id,
            created_at=datetime.fromtimestamp(login.created_at, UTC),
            last_used_at=datetime.fromtimestamp(login.last_used_at, UTC),
            ends_at=datetime.fromtimestamp(login.ends_at, UTC),
            user_agent=login.user_agent,
            is_current=current is not None and current.id == login.id,
        )


class LoginList(BaseModel):
    """The logins of the caller's key, the most recently used first."""

    items: list[LoginAnswer]


class LoginCode(BaseModel):
    """A code that begins a login, once."""

    code: str
    expires_at: datetime
    url: str = Field(
        description="The console's address with the code behind `#`, which no log or proxy sees."
    )


class Used(BaseModel):
    """The used part of one quota."""

    used: float
    maximum: float | None = Field(description="Null: no bound.")


class KeyUse(BaseModel):
    """The present use of a key's quotas."""

    sandboxes: Used
    executions_at_once: Used
    executions_today: Used
    cpu_seconds_today: Used


class Me(BaseModel):
    """The caller of a request."""

    key_id: str = Field(description="`owner` for the server's own token.")
    name: str
    is_owner: bool
    scopes: list[str]
    policy: Policy
    login: LoginAnswer | None = Field(
        description="The login that the request came with; null: it came with a token."
    )
    use: KeyUse

    @classmethod
    def of(cls, principal: Principal, name: str, login: Login | None, use: KeyUse) -> Me:
        """Makes it from the caller of a request."""
        return cls(
            key_id=principal.key_id,
            name=name,
            is_owner=principal.is_owner,
            scopes=sorted(principal.scopes),
            policy=policy_of(principal.policy),
            login=None if login is None else LoginAnswer.of(login, login),
            use=use,
        )
