"""Takes the pictures of the guide to the console anew: a real server, real sandboxes, Debian's chromium.

`make console-pictures` runs it. It needs the packages of the tests (playwright) and `chromium`.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "pictures"
TOKEN = "token-of-the-pictures"  # noqa: S105
LOAD = '''import pandas as pd
from io import StringIO

csv = """species,mass,flipper
Adelie,3700,189
Gentoo,5076,217
Chinstrap,3733,196
Gentoo,5220,222
"""
penguins = pd.read_csv(StringIO(csv))
penguins'''
PLOT = """import matplotlib.pyplot as plt

for name, group in penguins.groupby("species"):
    plt.scatter(group.flipper, group.mass, label=name)
plt.xlabel("flipper in mm")
plt.ylabel("mass in g")
plt.title("Mass by flipper")
plt.show()"""


def main() -> int:
    """Starts a server, fills it, and takes the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        port = "18765"
        argv = [
            sys.executable,
            "-m",
            "fumehood",
            "serve",
            "--port",
            port,
            "--state-folder",
            folder,
            "--token",
            TOKEN,
        ]
        server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)

        try:
            client = httpx2.Client(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60
            )
            _wait(client)
            take(client, fill(client))
        finally:
            server.terminate()
            server.wait()

    return 0


def fill(client: httpx2.Client) -> str:
    """Makes three sandboxes, runs code in one, and returns its id."""
    ids = [
        client.post("/v1/sandboxes", json={"metadata": {"task": task}}).json()["id"]
        for task in ("clean the orders", "plot the weather", "penguins")
    ]
    path = f"/v1/sandboxes/{ids[-1]}"

    def run(code: str) -> None:
        client.post(f"{path}/executions", json={"code": code, "tell_changes": True}).raise_for_status()

    client.post(f"/v1/sandboxes/{ids[0]}/executions", json={"code": "orders = [3, None, 5]"})
    run(LOAD)
    client.post(f"{path}/checkpoints", json={"name": "loaded"})
    run("penguins['ratio'] = penguins.mass / penguins['flippers']")
    client.post(f"{path}/checkpoints/loaded/rollback")
    run("penguins['ratio'] = penguins.mass / penguins.flipper\npenguins.describe()")
    client.post(f"{path}/forks", json={"count": 1})
    run(PLOT)
    return ids[-1]


def take(client: httpx2.Client, sandbox_id: str) -> None:
    """Takes the pictures: the list, a sandbox in the light and in the dark, and the audit record."""
    flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)

        for name, scheme, path in (
            ("console-list", "light", "sandboxes"),
            ("console-sandbox", "light", f"sandboxes/{sandbox_id}"),
            ("console-audit", "dark", f"sandboxes/{sandbox_id}?panel=audit"),
        ):
            context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            page = context.new_page()
            page.goto(client.post("/v1/login/codes").json()["url"])
            page.get_by_role("heading", name="Sandboxes").wait_for()
            page.goto(str(client.base_url.join(f"/console/{path}")))
            _settle(page, name)
            _keep(page.screenshot(), FOLDER / f"{name}.png")
            context.close()

        browser.close()


def _keep(picture: bytes, path: Path) -> None:
    # A palette does for a page, and a half of the bytes.
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(
        256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(path, optimize=True)


def _settle(page: Page, name: str) -> None:
    if name == "console-list":
        page.get_by_role("row").nth(2).wait_for()
    else:
        page.get_by_role("img", name="Mass by flipper").wait_for()

    if name == "console-audit":
        page.get_by_role("button", name="Verify", exact=True).click()
        page.get_by_text("Whole:").wait_for()

    page.wait_for_timeout(2500)


def _wait(client: httpx2.Client) -> None:
    for _ in range(300):
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx2.ConnectError:
            pass

        time.sleep(0.2)

    raise SystemExit("the server did not start")


if __name__ == "__main__":
    sys.exit(main())
