"""Builds an image from a Dockerfile: carries out each stage's instructions, which make layers or change settings.

Runs in the host process; the layers themselves are made in `step_layers`.
"""

from __future__ import annotations

import platform
import posixpath
from collections.abc import Mapping
from dataclasses import replace

from fumehood.errors import ImageError, ImagePlatformError, InvalidArgumentError
from fumehood.templates.images.description import ARCHITECTURES, MAX_VOLUMES, ImageConfig, image_path
from fumehood.templates.images.dockerfile import Dockerfile, Instruction, Stage, expand, pairs, program
from fumehood.templates.images.layers import LayerInfo, layer_key
from fumehood.templates.images.pull import pull
from fumehood.templates.images.reference import read_reference
from fumehood.templates.images.step_group import why_not
from fumehood.templates.images.step_layers import Brought, StepLayers
from fumehood.templates.images.workbench import BuildWorkbench, StageState

_UPLOAD = "upload:"
# Stands for the template as the base of a build; no image can have this name.
NO_IMAGE = ":template:"


def build_image(
    dockerfile: Dockerfile, name: str, bench: BuildWorkbench
) -> tuple[ImageConfig, tuple[str, ...]]:
    """Builds the last stage and the stages that it needs; returns its configuration and its layers, the lowest first.

    Args:
        dockerfile: The Dockerfile.
        name: Its name, for messages.
        bench: The data that the steps share.

    Raises:
        TemplateStoreError: A step failed; the error has the last lines that it wrote.
        ImageError: A base image cannot be pulled.
        InvalidArgumentError: An instruction cannot work.
    """
    for line in dockerfile.warnings:
        bench.say(line)

    has_steps = any(one.name == "RUN" for stage in dockerfile.stages for one in stage.instructions)

    if has_steps and (reason := why_not()):
        bench.say(f"the memory of steps has no bound here: {reason}")

    build = _Build(dockerfile, name, bench)
    state = build.stage(len(dockerfile.stages) - 1)
    return state.config, state.layers


class _Build:
    def __init__(self, dockerfile: Dockerfile, name: str, bench: BuildWorkbench) -> None:
        self._dockerfile = dockerfile
        self._name = name
        self._bench = bench
        self._done: dict[int, StageState] = {}
        self._layers = StepLayers(name, bench)
        system = f"linux/{ARCHITECTURES.get(platform.machine(), platform.machine())}"
        self._known = {
            "TARGETPLATFORM": system,
            "BUILDPLATFORM": system,
            "TARGETOS": "linux",
            "BUILDOS": "linux",
            "TARGETARCH": system.partition("/")[2],
            "BUILDARCH": system.partition("/")[2],
        }
        self._global = {**self._known, **dockerfile.defaults, **_given(bench, dockerfile.defaults)}

    def stage(self, number: int) -> StageState:
        """Builds a stage, once."""
        if number not in self._done:
            stage = self._dockerfile.stages[number]
            state = self._base(stage, number)
            count = len(stage.instructions)

            for place, instruction in enumerate(stage.instructions, 1):
                self._carry_out(instruction, state, f"{stage.name} {place}/{count}")

            self._done[number] = state

        return self._done[number]

    def _base(self, stage: Stage, number: int) -> StageState:
        base = expand(stage.base, self._global)
        wanted = expand(stage.platform, self._global)

        if wanted and wanted != self._known["TARGETPLATFORM"]:
            raise ImagePlatformError(
                image=base, reason=f"it is wanted for {wanted}, and this machine is another one"
            )

        if base == NO_IMAGE and self._bench.base is not None:
            return StageState(layers=self._bench.base.layers, config=self._bench.base.config)

        earlier = self._number(base, number)

        if earlier is not None:
            found = self.stage(earlier)
            return StageState(layers=found.layers, config=found.config)

        if base == "scratch":
            return StageState(layers=(_empty(self._bench),), config=ImageConfig())

        return _pulled(self._bench, _named("FROM", base, self._bench))

    def _number(self, name: str, before: int) -> int | None:
        """Returns the number of an earlier stage, by its name or number."""
        for number, stage in enumerate(self._dockerfile.stages[:before]):
            if name.lower() in (stage.name, str(number)):
                return number

        return None

    def _carry_out(self, instruction: Instruction, state: StageState, place: str) -> None:
        name, text = instruction.name, expand(instruction.text, state.variables)

        if name == "RUN":
            self._layers.run(instruction, state, place)
        elif name in ("COPY", "ADD"):
            self._copy(instruction, state, place)
        elif name == "WORKDIR":
            self._layers.change_folder(text, state, place)
        elif name == "ARG":
            self._declare(instruction, state)
        elif name == "ENV":
            values = {
                key: expand(value or "", state.variables) for key, value in pairs(instruction, self._name)
            }
            state.config = replace(state.config, envs={**state.config.envs, **values})
        elif name == "VOLUME":
            self._add_volumes(instruction, state)
        elif name == "USER":
            state.config = replace(state.config, user=text.strip())
        elif name == "SHELL":
            state.config = replace(state.config, shell=instruction.words or ())
        elif name == "ENTRYPOINT":
            state.config = replace(
                state.config, entrypoint=program(instruction, state.config.shell), command=()
            )
        elif name == "CMD":
            state.config = replace(state.config, command=program(instruction, state.config.shell))

    def _add_volumes(self, instruction: Instruction, state: StageState) -> None:
        words = [expand(word, state.variables) for word in instruction.words or instruction.text.split()]
        paths = [image_path(posixpath.join(state.config.workdir, word)) for word in words]
        volumes = tuple(dict.fromkeys([*state.config.volumes, *paths]))

        if len(volumes) > MAX_VOLUMES and "optional" in instruction.flags:
            self._bench.say(
                f"read-only, as there are {MAX_VOLUMES} volumes: {' '.join(volumes[MAX_VOLUMES:])}"
            )
            volumes = volumes[:MAX_VOLUMES]

        if len(volumes) > MAX_VOLUMES:
            reason = f"line {instruction.line}: it names more than {MAX_VOLUMES} volumes"
            raise ImageError(image=self._bench.template, reason=reason)

        state.config = replace(state.config, volumes=volumes)

    def _declare(self, instruction: Instruction, state: StageState) -> None:
        for key, default in pairs(instruction, self._name):
            value = self._bench.arguments.get(key)

            if value is None and default is not None:
                value = expand(default, state.variables)

            if value is None:
                value = self._global.get(key)

            if value is not None:
                state.arguments[key] = value

    def _copy(self, instruction: Instruction, state: StageState, place: str) -> None:
        words = instruction.words or tuple(instruction.text.split())
        words = tuple(expand(word, state.variables) for word in words)

        if len(words) < 2:
            raise InvalidArgumentError(
                field="dockerfile", value=str(instruction), allowed="sources and a destination"
            )

        *sources, target = words
        origin = instruction.flags.get("from")
        uploaded = self._bench.uploads.get((origin or "").removeprefix(_UPLOAD))

        if origin is None or uploaded is not None:
            brought = Brought(sources=tuple(sources), target=target, archive=uploaded)
        else:
            image = self._origin(expand(origin, self._global))
            brought = Brought(sources=tuple(sources), target=target, image=image)

        self._layers.copy(instruction, state, place, brought)

    def _origin(self, name: str) -> StageState:
        """Returns the stage or the image of `--from`."""
        number = self._number(name, len(self._dockerfile.stages))
        return (
            self.stage(number)
            if number is not None
            else _pulled(self._bench, _named("COPY --from", name, self._bench))
        )


def _named(instruction: str, image: str, bench: BuildWorkbench) -> str:
    """Returns the image that an instruction names; refuses one on this machine's disk unless the caller named it."""
    is_callers = image == bench.image or image in bench.arguments.values()

    if not is_callers and read_reference(image).kind != "registry":
        raise InvalidArgumentError(
            field=instruction,
            value=image,
            allowed="a stage, or an image of a registry; one of this machine is named by `--image`, or by "
            "`--build-arg` for an ARG",
        )

    return image


def _pulled(bench: BuildWorkbench, base: str) -> StageState:
    reference = read_reference(base)
    has_login = reference.kind == "registry" and bench.logins.find(reference.place) is not None
    bench.say(f"pulling {base}{f' with your login at {reference.place}' if has_login else ''}")
    image = pull(reference, bench.store, bench.logins, say=bench.say)
    layers = tuple(layer_key("sha256", layer.diff_id) for layer in image.layers)
    return StageState(layers=layers, config=image.config)


def _empty(bench: BuildWorkbench) -> str:
    """Returns the key of the empty layer (`FROM scratch`), which is stored on its first use."""
    key = layer_key("empty")

    if bench.store.info(key) is None:
        with bench.store.making(bench.ids.uid_map[0][1]) as made:
            made.keep(key, LayerInfo(made_by="FROM scratch", size_bytes=0, entries=0))

    return key


def _given(bench: BuildWorkbench, names: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in bench.arguments.items() if name in names}
