"""The interface of a context's IPython shell to its own parts.

The parts (comms, figures, display of values) depend on this class alone; `PythonShell` combines them.
"""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from fumehood_guest.context.event_loop import BackgroundLoop
from fumehood_guest.context.outlet import Outlet
from fumehood_guest.context.streams import Streams


class ConnectedShell(InteractiveShell):  # type: ignore[misc]
    """A shell in a context.

    Attributes:
        outlet: Takes results and errors; like `streams` and `background`, not set before the shell is attached.
        streams: Standard output and standard error of the cells.
        background: The loop on which coroutines of the cells run.
        running_source: The cell that runs, or ran last.
    """

    outlet: Outlet
    streams: Streams
    background: BackgroundLoop
    running_source = ""
