"""What a zygote runs once before it forks: the cells of each preloaded package."""

from __future__ import annotations

from fumehood_guest.context import rehearsal


class Preloaded:
    """A preload list whose modules are there."""

    def __init__(self, *names: str) -> None:
        self.unfit: dict[str, tuple[str, str]] = {}
        self.found = list(names)
        self.checked: list[str] = []

    def load(self) -> None:
        """They are imported already."""

    def check_threads(self, name: str, what: str) -> None:
        self.checked.append(name)


def test_a_module_of_a_package_brings_the_cells_of_the_package(monkeypatch):
    """The default list names `matplotlib.pyplot`: the first plot of a sandbox is not the first of the process."""
    ran: list[str] = []
    monkeypatch.setattr(rehearsal, "_rehearse", lambda _shell, cells: ran.extend(cells))
    monkeypatch.setattr(rehearsal, "forget_lookups", lambda: None)
    preloaded = Preloaded("numpy", "pandas", "matplotlib.pyplot")
    rehearsal._warm_up(type("Shell", (), {})(), preloaded)

    assert preloaded.checked == ["pandas", "matplotlib.pyplot"]
    assert [cell.split()[1] for cell in ran if cell.startswith("import ")][:2] == [
        "pandas",
        "matplotlib.pyplot",
    ]
