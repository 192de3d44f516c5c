"""Which level of isolation a set of layers amounts to.

Runs in the host process and only computes. A level is reached when every layer that it depends on is there; a weaker
means in place of a layer counts, and the layer says so. No runtime may name its level by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from fumehood.isolation_levels import IsolationLevel
from fumehood.models import Isolation, Layer

# From the strongest to the weakest. Landlock is a second wall where there are namespaces, and the first where not.
_STANDS_ON: dict[IsolationLevel, frozenset[str]] = {
    "namespaces": frozenset(
        (
            "namespaces",
            "identity",
            "filesystem root",
            "capabilities",
            "no new privileges",
            "seccomp",
            "network",
        )
    ),
    "landlock-only": frozenset(
        (
            "capabilities",
            "no new privileges",
            "seccomp",
            "landlock files",
            "landlock signals",
            "network",
        )
    ),
}


def isolation_of(layers: Iterable[Layer]) -> Isolation:
    """Returns the layers with the strongest level that they amount to."""
    layers = tuple(layers)
    standing = {layer.name for layer in layers if layer.state != "off"}
    level: IsolationLevel = next(
        (level for level, needed in _STANDS_ON.items() if needed <= standing), "none"
    )
    return Isolation(level=level, layers=layers)
