"""Takes the pictures of the guide to the console anew: a real server, real sandboxes, Debian's chromium.

`make console-pictures` runs it; with `ARGS=FOLDER` it takes all views in both colours and two widths, to be looked at.
It needs the packages of the tests (playwright) and `chromium`.
"""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx2
from PIL import Image
from playwright.sync_api import Browser, Error, StorageState, sync_playwright

FOLDER = Path(__file__).parent / "pictures"
_NARROW = 900
_SECONDS = 3600
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
WAYS = (
    ("Way 1", "penguins.groupby('species').mass.mean()"),
    ("Way 2", "penguins.groupby('species').mass.median()"),
)
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
            "--records",
            "keep",
            "--max-network",
            "listed",
        ]
        server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)

        try:
            client = httpx2.Client(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60
            )
            _wait(client)
            take(client, fill(client), Path(sys.argv[1]) if len(sys.argv) > 1 else None)
        finally:
            server.terminate()
            server.wait()

    return 0


@dataclass(frozen=True)
class Made:
    """What the pictures show: a sandbox, one that has ended, and one that may reach some hosts."""

    sandbox_id: str
    ended_id: str
    guarded_id: str


def fill(client: httpx2.Client) -> Made:
    """Makes sandboxes, runs code in them, ends one, makes a key and a share."""
    ids = [
        client.post("/v1/sandboxes", json={"metadata": {"task": task}, "timeout_seconds": _SECONDS}).json()[
            "id"
        ]
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
    run("open('penguins.csv', 'w').write(csv)")
    client.post(
        f"{path}/commands", json={"argv": ["python3", "-m", "http.server", "8000"]}
    ).raise_for_status()
    client.post("/v1/shares", json={"sandbox_id": ids[-1], "shows": ["record", "files"]}).raise_for_status()
    policy = {"executions_per_day": 1000, "max_sandboxes": 10}
    client.post("/v1/keys", json={"name": "blue team", "policy": policy}).raise_for_status()
    ended = client.post("/v1/sandboxes", json={"metadata": {"task": "draw lots"}}).json()["id"]

    for code in ("import random\nlots = range(1000)", "random.sample(lots, 3)", "len(lots)"):
        client.post(f"/v1/sandboxes/{ended}/executions", json={"code": code}).raise_for_status()

    client.delete(f"/v1/sandboxes/{ended}").raise_for_status()
    return Made(sandbox_id=ids[-1], ended_id=ended, guarded_id=_guarded(client))


def _guarded(client: httpx2.Client) -> str:
    """A sandbox that may reach some hosts, and tried others."""
    policy = {"allow": ["pypi.org", "*.example.org"], "deny": ["tracker.example.org"]}
    wanted = {"network": policy, "metadata": {"task": "look things up"}, "timeout_seconds": _SECONDS}
    made: str = client.post("/v1/sandboxes", json=wanted).raise_for_status().json()["id"]
    tried = ("metadata.internal", "tracker.example.org", "evil.example.com")
    code = f"import urllib.request\n\nfor host in {tried}:\n    try:\n        urllib.request.urlopen(f'http://{{host}}/')\n"
    code += "    except OSError as error:\n        print(host, error)"
    client.post(f"/v1/sandboxes/{made}/executions", json={"code": code}).raise_for_status()
    return made


@dataclass(frozen=True)
class View:
    """A view of the console, and what shows that it is there.

    Attributes:
        path: Its address below the console.
        text: A text that is seen once it is complete.
        acts: Names of buttons, tabs or menus that are pressed first, in order.
        scheme: The colours of its picture in the guide.
        fill: The fields that are filled before, by their labels; "" is what has the focus, and takes lines.
    """

    path: str
    text: str
    acts: tuple[str, ...] = ()
    scheme: Literal["light", "dark"] = "light"
    fill: tuple[tuple[str, str], ...] = ()


def views(made: Made) -> dict[str, View]:
    """The views that are looked at, by the names of their pictures."""
    box = f"sandboxes/{made.sandbox_id}"
    return {
        "list": View("sandboxes", "penguins"),
        "sandbox": View(box, "describe"),
        "audit": View(f"{box}?panel=audit", "Whole:", ("Verify",), "dark"),
        "files": View(f"{box}?panel=files", "penguins.csv"),
        "terminal": View(
            f"{box}?panel=terminal", "connected", ("New terminal",), "dark", (("", "ls -l && head -2 *.csv"),)
        ),
        "ports": View(f"{box}?panel=ports", "8000"),
        "network": View(f"sandboxes/{made.guarded_id}?panel=network", "evil.example.com"),
        "isolation": View(f"{box}?panel=isolation", "seccomp"),
        "compare": View(f"{box}/compare?a=loaded", "differ"),
        "branches": View(f"{box}/branches", "Keep", ("Run them side by side",), "light", WAYS),
        "share": View(box, "Code and outputs", ("Share",)),
        "labels": View(box, "Another", ("Labels",)),
        "overview": View("overview", "What needs eyes"),
        "records": View("records", "killed"),
        "record": View(f"records/{made.ended_id}", "first that differs", ("Run again",)),
        "shares": View("shares", "Revoke"),
        "keys": View("keys", "blue team"),
        "usage": View("usage", "Executions"),
        "queue": View("queue", "Stateless runs"),
        "server": View("server", "Settings", (), "dark"),
    }


IN_THE_GUIDE = (
    *("list", "sandbox", "audit", "compare", "records", "record", "overview", "server"),
    *("network", "branches", "terminal", "share", "keys"),
)


def take(client: httpx2.Client, made: Made, folder: Path | None) -> None:
    """Takes the pictures of the guide, or with a folder those of all views, in both colours and two widths."""
    flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    found = views(made)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        state = _logged_in(browser, client)

        if folder is None:
            for name in IN_THE_GUIDE:
                view = found[name]
                picture = _picture(browser, client, state, view, view.scheme, 1280)
                _keep(picture, FOLDER / f"console-{name}.png")
        else:
            for (name, view), scheme, width in itertools.product(
                found.items(), ("light", "dark"), (1280, 375)
            ):
                _keep(
                    _picture(browser, client, state, view, scheme, width),
                    folder / f"{name}-{scheme}-{width}.png",
                )

        browser.close()


def _logged_in(browser: Browser, client: httpx2.Client) -> StorageState:
    context = browser.new_context()
    page = context.new_page()
    page.goto(client.post("/v1/login/codes").json()["url"])
    page.get_by_role("heading", name="Sandboxes").wait_for()
    state = context.storage_state()
    context.close()
    return state


def _picture(
    browser: Browser, client: httpx2.Client, state: StorageState, view: View, scheme: str, width: int
) -> bytes:
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        storage_state=state,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(str(client.base_url.join(f"/console/{view.path}")))
    is_narrow = width < _NARROW

    try:
        if is_narrow and "panel=" in view.path:
            page.get_by_role("button", name="Inspect").click()

        for label, text in view.fill:
            if label:
                page.get_by_label(label, exact=True).fill(text)

        for act in view.acts:
            page.get_by_role("button", name=act, exact=True).first.click()

        page.get_by_text(view.text).first.wait_for(state="attached", timeout=15_000)
        page.wait_for_timeout(1500)

        for label, text in view.fill:
            if not label:
                page.keyboard.type(f"{text}\n")
                page.wait_for_timeout(1500)
    except Error as error:
        sys.stderr.write(f"{view.path} at {width}: {str(error).splitlines()[0]}\n")

    picture = page.screenshot()
    context.close()
    return picture


def _keep(picture: bytes, path: Path) -> None:
    # A palette does for a page, and a half of the bytes.
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(
        256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(path, optimize=True)


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
