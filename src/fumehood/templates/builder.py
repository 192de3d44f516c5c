"""The builder: makes a named template from a recipe, tests it, and only then publishes it.

After any failure, an error, Ctrl-C or a kill, the template that had the name before is untouched; the unfinished build
is deleted, by the builder or by the next use of the store.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fumehood.errors import SandboxStartError, TemplateError, TemplateStoreError
from fumehood.templates.environment import read_environment
from fumehood.templates.given_files import copy_files, describe_files
from fumehood.templates.recipe import LANGUAGES, Made, Recipe, Say, SkippedModule, Workshop
from fumehood.templates.store import BuildFolder, TemplateInfo, TemplateRecord, TemplateStore, new_info
from fumehood.values.template import Template

# Starts a real sandbox from a template, and raises its errors; returns the modules that are not preloaded.
Trial = Callable[[Template], Sequence[SkippedModule]]


def build(recipe: Recipe, store: TemplateStore, trial: Trial, *, force: bool, say: Say) -> TemplateInfo:
    """Builds a template, unless the one in the store was made from the same inputs.

    Args:
        recipe: The inputs of the template.
        store: The store that the template is published in.
        trial: Tests the build before it is published.
        force: Build the template even if no input has changed.
        say: Called with each step.

    Raises:
        TemplateStoreError: A step failed; the store is as it was.
        InvalidArgumentError: The recipe's files cannot be given to sandboxes.
    """
    started = time.monotonic()
    recipe.source.prepare(recipe.name, say)
    fingerprint = recipe.fingerprint()

    with store.building(recipe.name, say):
        known = None if force else store.record(recipe.name)

        if known is not None and known.info.fingerprint == fingerprint and store.is_whole(known):
            say(f"template {recipe.name!r} is up to date: nothing that it is made of has changed")
            return known.info

        with store.new_build(recipe.name) as place:
            record = _make(recipe, store, place, trial, fingerprint, say)
            store.publish(record)

    size_mb, taken_seconds = record.info.size_bytes / 1e6, time.monotonic() - started
    say(
        f"template {recipe.name!r} is built: Python {record.info.python}, {size_mb:.0f} MB, {taken_seconds:.1f} s"
    )
    return record.info


def _make(
    recipe: Recipe, store: TemplateStore, place: BuildFolder, trial: Trial, fingerprint: str, say: Say
) -> TemplateRecord:
    workshop = Workshop(template=recipe.name, folder=place.folder, lock_fd=place.lock_fd, say=say)
    made = recipe.source.make(workshop)

    if recipe.files is not None:
        say("copying the files")
        _copy_files(recipe.name, recipe.files, place.files, is_alone=made.files is None)

    template = Template(
        name=recipe.name,
        python=made.python,
        image=made.image,
        preload=recipe.preload,
        files=place.files if recipe.files is not None or made.files is not None else None,
        envs=recipe.envs,
        own_interpreter=_has_own_interpreters(recipe, made),
        start=recipe.start,
    )
    languages: dict[str, str] = {}

    if recipe.languages is not None:
        _make_readable(place.folder)
        folder = os.path.join(place.folder, LANGUAGES)
        languages = recipe.languages.prepare(template, folder, say)
        template = replace(template, languages=folder, language_versions=languages)

    size_bytes = _make_readable(place.folder)

    if made.image is not None:
        size_bytes += store.layers.size_bytes(made.image.needed)

    say("starting a sandbox from it")
    try:
        version = made.image.version if made.image is not None else read_environment(template).version
        left_out = trial(template)
    except TemplateError as error:
        raise TemplateStoreError(
            template=recipe.name, operation="build", reason=error.reason, hint=error.hint
        ) from None
    except SandboxStartError as error:
        raise TemplateStoreError(
            template=recipe.name,
            operation="build",
            reason=f"no sandbox starts from it: {error.step}: {error.reason}",
            hint=error.hint,
        ) from None

    for one in left_out:
        say(f"not preloaded: {one}; sandboxes can import it all the same")

    info = new_info(template, version=version, size_bytes=size_bytes, fingerprint=fingerprint)
    left_out_reasons = {one.module: one.reason for one in left_out}
    info = replace(info, left_out=left_out_reasons, languages=languages, limits=dict(recipe.limits))
    interpreter = "" if made.python is None else os.path.relpath(made.python, place.folder)
    return TemplateRecord(info=info, build=place.name, interpreter=interpreter, image=made.image)


def _has_own_interpreters(recipe: Recipe, made: Made) -> bool:
    """Returns whether each sandbox gets an interpreter of its own.

    Files of an image that its own Python loads could affect every sandbox forked from that process. So each sandbox of
    such an image has an interpreter of its own, unless the recipe says otherwise.
    """
    if recipe.own_interpreter is not None:
        return recipe.own_interpreter

    return made.image is not None and bool(made.image.python)


def _copy_files(name: str, folder: str, target: str, *, is_alone: bool) -> None:
    before = describe_files(folder)
    copy_files(folder, target)

    if is_alone and describe_files(target) != before:
        raise TemplateStoreError(
            template=name,
            operation="build",
            reason=f"the files in {folder!r} were changed while they were copied",
            hint="build it again when no program writes there",
        )


def _make_readable(folder: str) -> int:
    """Makes a build readable for the guest, which runs as a different user; returns the total size."""
    size_bytes = 0

    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            info = os.lstat(path)

            if stat.S_ISLNK(info.st_mode):
                continue

            size_bytes += info.st_blocks * 512
            wanted = info.st_mode | (0o555 if info.st_mode & 0o100 or stat.S_ISDIR(info.st_mode) else 0o444)

            if wanted != info.st_mode:
                os.chmod(path, stat.S_IMODE(wanted))

    return size_bytes
