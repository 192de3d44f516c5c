"""Models of the routes of a sandbox's network.

They bound and describe; `fumehood.values` checks the rules themselves.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from fumehood.bounds import TIB
from fumehood.server.schemas.describe import described_fields, model_of
from fumehood.server.schemas.fields import Body
from fumehood.values.network import EgressRecord, Network, read_network

_WORDS = described_fields(Network)
_MAX_RULES = 1000

RuleText = Annotated[str, Field(min_length=1, max_length=300)]
HostName = Annotated[str, Field(min_length=1, max_length=300)]
HeaderText = Annotated[str, Field(max_length=8192)]

RecordAnswer = model_of(EgressRecord)


class NewNetwork(Body):
    """What a sandbox may reach; without any rule, nothing."""

    allow: list[RuleText] = Field(default_factory=list, max_length=_MAX_RULES, description=_WORDS["allow"])
    deny: list[RuleText] = Field(default_factory=list, max_length=_MAX_RULES, description=_WORDS["deny"])
    internet: bool = Field(False, description=_WORDS["internet"])
    presets: list[Literal["pip"]] = Field(default_factory=list, max_length=1, description=_WORDS["presets"])
    hosts: dict[HostName, RuleText] = Field(
        default_factory=dict, max_length=_MAX_RULES, description=_WORDS["hosts"]
    )
    secrets: dict[HostName, dict[HostName, HeaderText]] = Field(
        default_factory=dict, max_length=_MAX_RULES, description=_WORDS["secrets"], repr=False
    )
    max_bytes: int = Field(Network().max_bytes, ge=1, le=1024 * TIB, description=_WORDS["max_bytes"])

    def network(self) -> Network:
        """Returns it as the port knows it."""
        return Network(**self.model_dump())


NetworkField = (
    NewNetwork | Literal["none", "pip", "internet"] | Annotated[list[RuleText], Field(max_length=_MAX_RULES)]
)


class EgressLog(BaseModel):
    """The connections that a sandbox made and tried to make, the oldest first."""

    items: list[RecordAnswer]  # type: ignore[valid-type]


def network_of(given: NetworkField) -> Network:
    """Returns the network that a body asks for."""
    if isinstance(given, NewNetwork):
        return given.network()

    return read_network(given)
