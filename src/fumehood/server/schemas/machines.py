"""Models of the routes of machines."""

from __future__ import annotations

from pydantic import BaseModel, Field

from fumehood.server.schemas.base import Body, model_of
from fumehood.values.machines import MachineInfo

MachineAnswer = model_of(MachineInfo)


class NewDraining(Body):
    """Whether a machine is to be drained."""

    is_draining: bool = Field(description="True: it makes no new sandboxes, other than forks of its own.")


class MachinePage(BaseModel):
    """The machines of a server."""

    items: list[MachineAnswer]  # type: ignore[valid-type]
    runs_running: int = Field(description="Stateless runs that this server has begun.")
    runs_waiting: int = Field(description="Stateless runs that wait at this server.")
