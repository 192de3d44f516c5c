"""The documentation as a site: `make docs` builds it with Sphinx into build/site.

Reads the Markdown pages of the repository as they are; writes nothing into it. Nothing of the site is loaded from
elsewhere when it is read: theme, search and fonts are its own files, or the reader's.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

_ROOT = Path(__file__).resolve().parents[1]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_LOG = logging.getLogger(__name__)

project = "fumehood"
release = version = _PROJECT["version"]
html_title = f"fumehood {version}"
html_theme = "furo"
html_logo = html_favicon = "logo.svg"
html_theme_options = {"navigation_with_keys": True}
html_show_copyright = html_show_sphinx = False
html_copy_source = False
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "examples/README.md",
    "docs/**.md",
]
exclude_patterns = [
    "docs/README.md",  # its place is taken by the navigation
    # No pages are in these, and some hundred thousand files.
    *(".*", "build", "dist", "src", "tests", "web"),
]
# Headings have the names that forges give them.
myst_heading_anchors = 4
highlight_language = "text"

# The pages in the order in which a person learns.
_NAVIGATION = {
    "Learn": {
        "1. Five minutes": "docs/tutorials/1-five-minutes",
        "2. Packages": "docs/tutorials/2-packages",
        "3. Charts": "docs/tutorials/3-charts",
        "4. Files": "docs/tutorials/4-files",
        "5. Going back": "docs/tutorials/5-going-back",
        "6. A tool for my model": "docs/tutorials/6-a-tool-for-my-model",
        "7. A server for my team": "docs/tutorials/7-a-server-for-my-team",
        "Examples": "examples/README",
    },
    "Use": {
        "Getting started": "docs/guides/getting-started",
        "Files and commands": "docs/guides/files-and-commands",
        "Templates": "docs/guides/templates",
        "Container images": "docs/guides/images",
        "Which packages work": "docs/guides/packages",
        "Charts and results": "docs/guides/charts-and-results",
        "Languages": "docs/guides/languages",
        "Many runs": "docs/guides/many-runs",
        "Limits and usage": "docs/guides/limits-and-usage",
        "Network": "docs/guides/network",
        "Going back and forks": "docs/guides/time-travel",
        "Pause and resume": "docs/guides/pause",
        "Saving": "docs/guides/saving",
        "Notebooks": "docs/guides/notebooks",
        "Files out": "docs/guides/artifacts",
        "The command line": "docs/guides/cli",
        "Troubleshooting": "docs/guides/troubleshooting",
    },
    "For models": {
        "A tool for my model": "docs/guides/llm",
        "Ten transcripts": "docs/transcripts",
        "Agents": "docs/guides/agents",
        "Functions of yours": "docs/guides/host-tools",
        "MCP": "docs/guides/mcp",
        "Frameworks": "docs/guides/frameworks",
        "Scanning": "docs/guides/scanning",
    },
    "A server": {
        "A server for my team": "docs/guides/running-a-server",
        "From one machine to many": "docs/guides/clusters",
        "On Kubernetes": "docs/guides/kubernetes",
        "The console": "docs/guides/console",
        "The HTTP API": "docs/guides/http-api",
        "Behind nginx or Caddy": "docs/guides/behind-a-proxy",
        "Storage": "docs/guides/storage",
        "Logging": "docs/guides/logging",
    },
    "Coming from": {
        "E2B": "docs/guides/from-e2b",
        "Jupyter": "docs/guides/from-jupyter",
        "llm-sandbox": "docs/guides/from-llm-sandbox",
        "Modal": "docs/guides/from-modal",
        "Open Interpreter": "docs/guides/from-open-interpreter",
        "SandboxFusion": "docs/guides/from-sandboxfusion",
        "LibreChat": "docs/guides/from-librechat",
        "Replit": "docs/guides/from-replit",
    },
    "Security": {
        "Isolation": "docs/guides/isolation",
        "Audit and watching": "docs/guides/audit",
        "Threat model": "docs/threat-model",
        "Scorecard": "docs/scorecard",
        "Reliability": "docs/reliability",
        "Report a weakness": "SECURITY",
    },
    "Reference": {
        "fumehood": "docs/reference",
        "fumehood.llm": "docs/reference-llm",
        "fumehood.frameworks": "docs/reference-frameworks",
        "Other modules": "docs/reference-modules",
        "HTTP": "docs/http-reference",
        "Glossary": "docs/glossary",
        "Changelog": "CHANGELOG",
    },
    "Development": {
        "Architecture": "docs/architecture",
        "Decisions": "docs/decisions/README",
        "Figures": "benchmarks/README",
        "Contributing": "CONTRIBUTING",
    },
}

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def setup(app: Sphinx) -> None:
    """Registers what is done beside Sphinx's own work."""
    app.connect("source-read", _read)
    app.connect("build-finished", _finish)


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    """Turns a page into one of the site: navigation, and links to files that are no pages."""
    # Blocks of code stay as they are.
    parts = _FENCE.split(content[0])
    parts[::2] = [_LINK.sub(lambda link: _linked(link, app, docname), part) for part in parts[::2]]

    if docname == root_doc:
        parts += [_contents(caption, entries) for caption, entries in _NAVIGATION.items()]
    elif docname == "docs/decisions/README":
        parts.append("\n\n```{toctree}\n:glob:\n:maxdepth: 1\n\n0*\n```\n")

    content[0] = "".join(parts)


def _contents(caption: str, entries: dict[str, str]) -> str:
    lines = "\n".join(f"{title} </{page}>" for title, page in entries.items())
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def _linked(link: re.Match[str], app: Sphinx, docname: str) -> str:
    """The link as it is if it leads to a page, else to the file in the repository."""
    target = os.path.normpath(os.path.join(os.path.dirname(docname), link[1]))

    if not (_ROOT / target).exists():
        _LOG.warning("there is no %s", link[1], location=docname)

    if target == "docs/README.md":
        return f"]({os.path.relpath('README.md', os.path.dirname(docname) or '.')})"

    if target.removesuffix(".md") in app.project.docnames or target.endswith((".svg", ".png")):
        return link[0]

    return f"]({_PROJECT['urls']['Repository']}/blob/main/{target}{link[2] or ''})"


def _finish(app: Sphinx, exception: Exception | None) -> None:
    """Gives the site the page that web servers look for."""
    if exception is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))
