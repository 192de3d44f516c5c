"""The requests of `filesystem.Filesystem`. Pure, used in the server process."""

from __future__ import annotations

from fumehood.dialects.e2b.environment import inside
from fumehood.dialects.e2b.messages import ClientMessage, Flag, Whole
from fumehood.server.json_bodies import Text
from fumehood.values.requests import WatchFiles


class PathRequest(ClientMessage):
    """A request about one path."""

    path: Text = ""


class ListDirRequest(PathRequest):
    """A directory to list, and the number of levels to list below it; 0 means one."""

    depth: Whole = 0


class MoveRequest(ClientMessage):
    """A file or directory to move."""

    source: Text = ""
    destination: Text = ""


class WatcherRequest(ClientMessage):
    """A request about one watcher."""

    watcher_id: Text = ""


class WatchRequest(PathRequest):
    """A directory to watch. No mount here is a network mount, so `allowNetworkMounts` changes nothing."""

    recursive: Flag = False
    include_entry: Flag = False
    allow_network_mounts: Flag = False

    def watch(self) -> WatchFiles:
        """Returns the request to watch a directory."""
        return WatchFiles(path=inside(self.path), recursive=self.recursive, entries=self.include_entry)
