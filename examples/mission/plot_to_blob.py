"""A plot, from code to an address that a person can open.

Runs in your process; the code of `CODE` draws in a sandbox, and an `ArtifactStore` publishes the file that it leaves.
The store is the folder `artifacts`, or what FUMEHOOD_ARTIFACTS names: with `s3://BUCKET/PREFIX`, and credentials in
the usual variables of AWS, the address is a signed one that ends after an hour. The model is scripted
(scripted_model.py); like real ones it writes a link with `sandbox:` in it that nobody could open, and the agent puts
the address in its place.
"""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

from fumehood import ArtifactStore
from fumehood.llm import Agent, CodeInterpreter
from scripted_model import ScriptedModel, Step

PENGUINS = Path(__file__).parents[1] / "data" / "penguins.csv"

# What a model would write.
CODE = """
import pandas as pd
import matplotlib.pyplot as plt

penguins = pd.read_csv("/mnt/data/penguins.csv")
penguins.plot.scatter("flipper_length_mm", "body_mass_g")
plt.savefig("/mnt/data/penguins.png")
plt.close()
"""
LINK = "Longer flippers, heavier birds: [the plot](sandbox:/mnt/data/penguins.png)"


def main() -> None:
    """Ask for the plot, and open its address as anybody could."""
    store = ArtifactStore(os.environ.get("FUMEHOOD_ARTIFACTS", "artifacts"))
    model = ScriptedModel(
        Step(reads="Plot", code=CODE),
        # Below what the code printed, the model is told of the address, or why there is none.
        Step(reads="for the user at", writes=LINK),
    )

    with CodeInterpreter(publish=store) as interpreter, Agent(model, interpreter=interpreter) as agent:
        answer = agent.ask("Plot body mass over flipper length.", files=[PENGUINS])

    print(answer.text)
    (plot,) = answer.files
    assert plot.url is not None

    with urllib.request.urlopen(plot.url, timeout=30) as reply:
        content = reply.read()

    print("fetched:", plot.path, reply.headers["Content-Type"], len(content), "bytes,", content[1:4].decode())


if __name__ == "__main__":
    main()
