"""A sandbox for each trial of Harbor: `--environment-import-path fumehood.frameworks.harbor:FumehoodEnvironment`.

Runs in the process of `harbor run`, on its asyncio loop. The image of a task is built once, without Docker, as a
template that is named by its content; each trial has a sandbox of it, which is killed at its end. The folders in which
Harbor puts files are volumes of the image. The one user is not root: nothing installs packages at run time,
and a Docker Compose file is refused.
"""

from __future__ import annotations

import asyncio
import shlex
import stat
import tempfile
import uuid
from pathlib import Path
from typing import Any

from fumehood import AsyncSandbox, CommandExitError, CommandTimeoutError, Limits, Network, build_template
from fumehood.api.transfers import MAX_DOWNLOAD_BYTES
from fumehood.frameworks.archives import check_expansion
from fumehood.frameworks.needed import needed

with needed("harbor"):
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import (
        COMPOSE_FILE_NAME,
        DOCKERFILE_NAME,
        require_agent_environment_definition,
    )
    from harbor.environments.tar_transfer import (
        extract_dir_from_file,
        pack_dir_to_bytes,
        remote_pack_command,
        remote_unpack_command,
        tar_pack_succeeded,
    )
    from harbor.models.task.config import NetworkMode

# Where Harbor puts logs, tests, solutions and agents.
_VOLUMES = "VOLUME /logs /tests /solution /installed-agent"
_MIB = 1 << 20
_TRANSFER_SECONDS = 600.0
# A command without a time limit of its own ends with its trial.
_LONGEST_SECONDS = 86_400.0
_DEFAULT_DISK_BYTES = 2 << 30
_LABEL = "harbor_session"


class FumehoodEnvironment(BaseEnvironment):
    """The environment of one trial.

    Attributes:
        sandbox: The sandbox itself; None before the start and after the end.
    """

    sandbox: AsyncSandbox | None = None

    @staticmethod
    def type() -> str:
        """The name of this kind of environment."""
        return "fumehood"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The capabilities of Harbor that are supported."""
        return EnvironmentCapabilities(
            disable_internet=True, network_allowlist=True, network_allowlist_hostnames=True
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Processors and memory are hard limits."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        )

        if (self.environment_dir / COMPOSE_FILE_NAME).exists() or self.extra_docker_compose_paths:
            raise ValueError("fumehood runs no Docker Compose files: give the task a Dockerfile")

    async def start(self, force_build: bool) -> None:
        """Build the template if its files have changed, and make the sandbox."""
        name = f"harbor-{self.environment_id[:32]}"
        await asyncio.to_thread(self._build, name, force_build)
        self.sandbox = await AsyncSandbox.create(
            name,
            limits=self._limits(),
            envs=self._startup_env(),
            network=self._network(),
            metadata={_LABEL: self.session_id[:100]},
        )
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Kill the sandbox."""
        sandbox, self.sandbox = self.sandbox, None

        if sandbox is not None:
            await sandbox.kill()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in bash, or sh, always as the sandbox's only user.

        Raises:
            RuntimeError: The command ran longer than `timeout_sec`.
        """
        try:
            done = await self._running().commands.run(
                command,
                cwd=cwd or self.task_env_config.workdir,
                envs=self._merge_env(env) or {},
                timeout=timeout_sec or _LONGEST_SECONDS,
            )
        except CommandExitError as error:
            return ExecResult(stdout=error.stdout, stderr=error.stderr, return_code=error.exit_code)
        except CommandTimeoutError as error:
            # As Harbor's own environments.
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from error

        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Write a file with its mode."""
        source = Path(source_path)
        content = await asyncio.to_thread(source.read_bytes)
        await self._running().files.write(target_path, content)
        mode = stat.S_IMODE(source.stat().st_mode)
        await self._transfer(f"chmod {mode:o} {shlex.quote(str(target_path))}")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Write a folder, with modes and links; the image has tar and gzip."""
        archive = await asyncio.to_thread(pack_dir_to_bytes, source_dir, compress=True, include_root=False)
        path = _temporary()
        await self._running().files.write(path, archive.getvalue())
        unpack = remote_unpack_command(path, str(target_dir), no_same_owner=True)
        await self._transfer(f"{unpack}; code=$?; rm -f {path}; exit $code")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Write a file of the sandbox to this machine."""
        content = await self._bounded(source_path)
        await asyncio.to_thread(Path(target_path).write_bytes, content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Write a folder of the sandbox to this machine; Harbor refuses entries that lead out of it."""
        path = _temporary()
        packed = await self.exec(
            remote_pack_command(str(source_dir), path), cwd="/", timeout_sec=int(_TRANSFER_SECONDS)
        )

        if not tar_pack_succeeded(
            packed.return_code, stdout=packed.stdout, stderr=packed.stderr, logger=self.logger
        ):
            raise RuntimeError(f"cannot pack {source_dir} (images must have tar and gzip): {packed.stderr}")

        content = await self._bounded(path)
        await self._transfer(f"rm -f {path}")

        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "archive")
            await asyncio.to_thread(archive.write_bytes, content)
            # Twice the disk: each file of a tar archive has a head, and is filled up.
            await asyncio.to_thread(check_expansion, archive, 2 * self._limits().disk_bytes)
            await asyncio.to_thread(extract_dir_from_file, archive, target_dir)

    async def reset_dirs(self, *, remove_dirs: Any, create_dirs: Any, chmod_dirs: Any = None) -> ExecResult:
        """Empty some folders and make others; folders of the image can be emptied, but not removed."""
        emptied = [_emptied(path) for path in remove_dirs]
        return await self.exec(" && ".join([*emptied, *(_made(path) for path in create_dirs)]) or "true")

    async def empty_dirs(self, dirs: Any, *, chmod: bool = True) -> ExecResult | None:
        """Empty folders, made if they are missing."""
        return await self.exec(" && ".join(_emptied(path) for path in dirs)) if dirs else None

    async def ensure_dirs(self, dirs: Any, *, chmod: bool = True) -> ExecResult | None:
        """Make folders; the one user may write to all of them."""
        return await self.exec(" && ".join(_made(path) for path in dirs)) if dirs else None

    def _build(self, name: str, force: bool) -> None:
        image = self.task_env_config.docker_image
        dockerfile = self.environment_dir / DOCKERFILE_NAME

        if not dockerfile.exists() or (image and not force):
            build_template(name, image=image, steps=[_VOLUMES], force=force)
            return

        with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile", encoding="utf-8") as file:
            file.write(f"{dockerfile.read_text(encoding='utf-8')}\n{_VOLUMES}\n")
            file.flush()
            build_template(name, dockerfile=file.name, context=str(self.environment_dir), force=force)

    def _limits(self) -> Limits:
        chosen: dict[str, Any] = {"disk_bytes": _DEFAULT_DISK_BYTES}

        if self._effective_cpus is not None:
            chosen["cpu_cores"] = float(self._effective_cpus)

        if self._effective_memory_mb is not None:
            chosen["memory_bytes"] = self._effective_memory_mb * _MIB

        if self._effective_storage_mb is not None:
            chosen["disk_bytes"] = self._effective_storage_mb * _MIB

        return Limits(**chosen)

    def _network(self) -> Network:
        policy = self.network_policy

        if policy.network_mode == NetworkMode.PUBLIC:
            return Network(internet=True)

        hosts = policy.allowed_hosts if policy.network_mode == NetworkMode.ALLOWLIST else ()
        return Network(allow=tuple(hosts))

    async def _bounded(self, path: str) -> bytes:
        """Returns the content of a file of the sandbox, which is held in memory here."""
        info = await self._running().files.get_info(path)

        if info.size_bytes > MAX_DOWNLOAD_BYTES:
            raise RuntimeError(f"{path} has more than {MAX_DOWNLOAD_BYTES:,} bytes")

        content = await self._running().files.read(path, format="bytes")
        return bytes(content)

    async def _transfer(self, command: str) -> None:
        done = await self.exec(command, cwd="/", timeout_sec=int(_TRANSFER_SECONDS))

        if done.return_code != 0:
            raise RuntimeError(f"cannot transfer files (images must have tar and gzip): {done.stderr}")

    def _running(self) -> AsyncSandbox:
        if self.sandbox is None:
            raise RuntimeError("the environment is not started")

        return self.sandbox


def _temporary() -> str:
    return f"/tmp/harbor-{uuid.uuid4().hex}.tar.gz"  # noqa: S108 - of the sandbox


def _made(path: object) -> str:
    return f"mkdir -p {shlex.quote(str(path))}"


def _emptied(path: object) -> str:
    folder = shlex.quote(f"{path}/")
    return f"{_made(path)} && find {folder} -mindepth 1 -delete"
