"""Images that buildah builds, where a Dockerfile holds what our own builder refuses.

Runs in the host process. buildah is a program of the operator's choice: it runs with the rights, the settings and the
network of this process's user, and its steps in containers of its own and not in our jails. Its result is an OCI layout
in a folder, and from there on as any other image: parsed and unpacked in a jail, and never trusted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fumehood.errors import InvalidArgumentError, TemplateStoreError
from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.description import ImageConfig
from fumehood.templates.images.layers import LayerStore, layer_key
from fumehood.templates.images.pull import pull
from fumehood.templates.images.reference import read_reference
from fumehood.templates.recipe import Say
from fumehood.text import visible_line
from fumehood_jail import emulated_root
from fumehood_jail.users import why_no_subordinate_ids

BUILDAH = "buildah"
_LINE_CHARACTERS = 500
_LAST_LINES = 5
_LAST_CHARACTERS = 1000
_MOST_LINE_BYTES = 1 << 16
_END_SECONDS = 10.0
# Variables that buildah, its libraries and the loader of programs read: they are not for values of ARGs.
_OF_BUILDAH = frozenset(
    (
        *("DOCKER_CONFIG", "REGISTRIES_CONFIG_PATH", "REGISTRY_AUTH_FILE", "SOURCE_DATE_EPOCH"),
        *("GCONV_PATH", "HOME", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TEMP", "TMP", "TMPDIR"),
        *("GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"),
    )
)
_OF_BUILDAH_BY_PREFIX = ("BUILDAH_", "CONTAINERS_", "_CONTAINERS_", "LD_", "STORAGE_", "XDG_")
_OF_BUILDAH_BY_SUFFIX = "_PROXY"
# The root of a user namespace with one id is no user of the machine, and may make no network.
_ONE_ID = {"_CONTAINERS_USERNS_CONFIGURED": "done", "BUILDAH_ISOLATION": "chroot"}


def check_builder(builder: str) -> None:
    """Checks the name of an external builder: `buildah`, or its absolute path.

    Raises:
        InvalidArgumentError: The builder is a program that cannot be used.
    """
    if builder != BUILDAH and not (os.path.isabs(builder) and os.path.basename(builder) == BUILDAH):
        allowed = "'buildah', or its absolute path; None for the builder that needs no other program"
        raise InvalidArgumentError(field="builder", value=builder, allowed=allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterBuild:
    """The inputs of a build by buildah.

    Attributes:
        builder: `buildah`, or its absolute path.
        dockerfile: The path of the Dockerfile.
        context: The folder of its files.
        arguments: Values of ARGs.
    """

    builder: str
    dockerfile: str
    context: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def hidden(self) -> dict[str, str]:
        """The build arguments whose values are passed in the environment, which other users cannot read."""
        return {
            name: value
            for name, value in self.arguments.items()
            if name not in os.environ and not _is_read_by_buildah(name.upper())
        }

    def command(self, program: str, result: str) -> list[str]:
        """Returns the command that builds the image, keeps its steps for later builds, and writes it to `result`."""
        hidden = self.hidden
        arguments = [
            f"--build-arg={name}" if name in hidden else f"--build-arg={name}={value}"
            for name, value in self.arguments.items()
        ]
        wanted = [f"--file={self.dockerfile}", f"--tag={result}", *arguments]
        return [program, *_store_options(), "build", "--layers", *wanted, "--", self.context]


def build_outside(
    build: OuterBuild, template: str, store: LayerStore, say: Say
) -> tuple[ImageConfig, tuple[str, ...]]:
    """Lets buildah build an image, and stores its layers; the caller keeps the store in use.

    Args:
        build: The build to carry out.
        template: The name of the template.
        store: Where the layers go.
        say: Called with each line that buildah writes.

    Returns:
        The configuration of the image and the names of its layers, the lowest first.

    Raises:
        TemplateStoreError: buildah is not installed, or has failed.
        ImageError: Its result is refused.
    """
    program = shutil.which(build.builder)

    if program is None:
        raise TemplateStoreError(
            template=template,
            operation="build",
            reason=f"the builder {build.builder!r} is not installed",
            hint="install it (Debian: apt-get install buildah), or leave it away: fumehood has a builder of its own",
        )

    with tempfile.TemporaryDirectory(prefix="fumehood-buildah-") as folder:
        result = f"oci:{folder}/image:made"
        say("buildah builds the image; its steps run in its containers, with your rights and your network")

        if shown := sorted(set(build.arguments) - set(build.hidden)):
            say(
                f"other users of this machine see the values of {', '.join(shown)}: buildah reads these variables"
            )

        argv, envs = build.command(program, result), build.hidden

        if _has_one_id():
            say(
                "you have one user id: what takes others, such as chown, succeeds in a step without being done"
            )
            argv, envs = emulated_root.command(argv), {**_ONE_ID, **envs}

        _run(argv, {**os.environ, **envs}, template, say)
        image = pull(read_reference(result), store, RegistryLogins({}), say=say)

    return image.config, tuple(layer_key("sha256", layer.diff_id) for layer in image.layers)


def _is_read_by_buildah(name: str) -> bool:
    return (
        name in _OF_BUILDAH or name.startswith(_OF_BUILDAH_BY_PREFIX) or name.endswith(_OF_BUILDAH_BY_SUFFIX)
    )


def _has_one_id() -> bool:
    """Whether buildah cannot map other ids, since this is an ordinary user without subordinate ones."""
    return os.geteuid() != 0 and bool(why_no_subordinate_ids())


def _store_options() -> tuple[str, ...]:
    """Returns buildah's storage options for a user with one id; none for others, whose own settings apply.

    The store is separate from the user's usual one, whose files belong to subordinate ids, and from the system's, which
    buildah would choose since it runs as root here. The driver is the one that needs neither whiteouts nor mounts.
    """
    if not _has_one_id():
        return ()

    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    folder = os.path.join(data, "containers", "one-id")
    return (f"--root={folder}/storage", f"--runroot={folder}/run", "--storage-driver=vfs")


def _run(argv: Sequence[str], environment: Mapping[str, str], template: str, say: Say) -> None:
    """Runs a program and passes its lines on; an exception ends its process group."""
    last: deque[str] = deque(maxlen=_LAST_LINES)

    with subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            while line := process.stdout.readline(_MOST_LINE_BYTES):
                text = visible_line(line.decode("utf-8", "replace").rstrip(), max_characters=_LINE_CHARACTERS)

                if text:
                    last.append(text)
                    say(f"  | {text}")
        except BaseException:
            _end(process)
            raise

    if process.returncode:
        said = " ".join(last)[-_LAST_CHARACTERS:]
        raise TemplateStoreError(
            template=template,
            operation="build",
            reason=f"{BUILDAH} ended with {process.returncode}: {said}",
            hint="where it cannot make containers, the variables BUILDAH_ISOLATION=chroot and STORAGE_DRIVER=vfs help",
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program with all that it has started: first politely, so that it unmounts what it has mounted."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_END_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
