"""A file of yours, read and summed up by code that no one has reviewed.

Runs in your process; the file is copied to `/mnt/data` of a sandbox, where the code of `CODE` reads it. The model is
scripted (scripted_model.py). The numbers are computed a second time here, by the standard library, to be compared.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

from fumehood.llm import ask
from scripted_model import ScriptedModel, Step

PENGUINS = Path(__file__).parents[1] / "data" / "penguins.csv"

# What a model would write.
CODE = """
import pandas as pd

penguins = pd.read_csv("/mnt/data/penguins.csv")
masses = penguins.groupby("species").body_mass_g
print(masses.agg(["count", "mean", "median", "std"]).round(1).to_string())
"""


def main() -> None:
    """Ask, and count again."""
    model = ScriptedModel(
        Step(reads="/mnt/data/penguins.csv", code=CODE),
        Step(reads="Gentoo", writes="Body mass of each species, in grams:\n{read}"),
    )
    print(ask("Count, mean, median and spread of body mass by species?", model=model, files=[PENGUINS]).text)

    by_species: dict[str, list[float]] = {}

    with PENGUINS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            masses = by_species.setdefault(row["species"], [])

            if row["body_mass_g"] not in ("", "NA"):
                masses.append(float(row["body_mass_g"]))

    for species, masses in sorted(by_species.items()):
        mean, median = statistics.mean(masses), statistics.median(masses)
        print(
            f"counted again: {species} {len(masses)} {mean:.1f} {median:.1f} {statistics.stdev(masses):.1f}"
        )


if __name__ == "__main__":
    main()
