"""Files go in, a report comes out."""

from __future__ import annotations

from pathlib import Path

from fumehood import Sandbox

DATA = Path(__file__).parent / "data" / "penguins.csv"


def main() -> None:
    """Upload a table, let code summarise it, read the summary back."""
    with Sandbox() as sandbox:
        with DATA.open("rb") as file:
            sandbox.files.write("in/penguins.csv", file)

        sandbox.run_code("""
            import pandas as pd
            table = pd.read_csv("in/penguins.csv").groupby("species").body_mass_g.mean().round(1)
            table.to_csv("/mnt/data/mass.csv")
        """)

        for entry in sandbox.files.list("/mnt/data"):
            print(entry.permissions, entry.size_bytes, entry.path)

        print(sandbox.files.read("/mnt/data/mass.csv"))


if __name__ == "__main__":
    main()
