"""The control group of a template's own processes, where code of an image runs in them.

An image's own Python is started outside of all sandboxes, and loads code of the image: without a group it could use up
the memory, the processes and the processors of the machine. Sandboxes leave the group when they enter their own; the
kernel memory that forking them took stays charged here. On a machine without control groups these processes have no
bound.
"""

from __future__ import annotations

import itertools

from fumehood.errors import TemplateError
from fumehood.runtimes.launcher_client import cgroup_fault
from fumehood.runtimes.linux.control_groups import remove_later, remove_now
from fumehood_jail import cgroups
from fumehood_jail.errors import JailError

# With all threads, the compilers of languages among them.
_PROCESSES = 512
# Modules are imported one after the other.
_CPU_CORES = 1.0
_numbers = itertools.count(1)


class TemplateGroup:
    """The control group of one template's processes.

    Args:
        driver: Makes the control group.
        prefix: The beginning of its name, the same for all groups of sandboxes.
        memory_bytes: Its limit of memory.

    Raises:
        SandboxStartError: The control group cannot be made.
    """

    def __init__(self, driver: cgroups.CgroupDriver, prefix: str, memory_bytes: int) -> None:
        self._driver = driver
        self._memory_bytes = memory_bytes
        self._kills = 0
        self._is_removed = False
        try:
            self._cgroup = driver.create(
                cgroups.cgroup_name(prefix, f"template{next(_numbers)}"),
                memory_bytes=memory_bytes,
                processes=_PROCESSES,
                cpu_cores=_CPU_CORES,
            )
        except JailError as error:
            raise cgroup_fault(error) from None

    def open_fds(self) -> list[int]:
        """Opens the files to which a process writes "0" to move itself into the group."""
        return self._cgroup.open_cgroup_fds()

    def fault(self, template: str) -> TemplateError | None:
        """Returns an error if the kernel has killed one of the processes because their memory was used up.

        Args:
            template: The name of the template.
        """
        if not self._is_removed:
            self._kills = self._cgroup.oom_kills()

        if self._kills == 0:
            return None

        return TemplateError(
            template=template,
            reason=f"its own processes took more than {self._memory_bytes / (1 << 30):g} GiB of memory",
            hint="preload fewer modules, or give them more: FUMEHOOD_TEMPLATE_MEMORY_BYTES",
        )

    def discard(self) -> None:
        """Removes the group if no process was ever in it."""
        if not self._is_removed:
            self._cgroup.remove()

    async def remove(self) -> None:
        """Removes the group once its processes have ended; a second call does nothing."""
        if self._is_removed:
            return

        self._kills = self._cgroup.oom_kills()
        self._is_removed = True

        if not remove_now(self._driver, self._cgroup):
            await remove_later(self._driver, self._cgroup)
