"""Titles from a web site, by code that may reach this one site and nothing else.

Runs in your process, with a small site on loopback in place of the real one; `requests` and BeautifulSoup run in the
sandbox, which must have them (packages.py). The model is scripted (scripted_model.py). The sandbox knows the site by
a made-up name, reaches it through the proxy of the allowlist, and is refused a second name; both stand in the log
that is printed.
"""

from __future__ import annotations

import http.server
import threading

from fumehood import Network, Sandbox
from fumehood.llm import Agent
from packages import require
from scripted_model import ScriptedModel, Step

PAGE = b"""<html><h1>News</h1>
<article><h2>Fume hood holds its breath</h2></article> <article><h2>Beaker &amp; burner: a love story</h2></article>
<article><h2>Titration, drop by drop</h2></article></html>"""

# What a model would write.
SCRAPE = """
import requests
from bs4 import BeautifulSoup

page = requests.get("http://news.example:PORT/")
titles = [title.text for title in BeautifulSoup(page.text, "html.parser").select("article h2")]
open("article_titles.txt", "w").write("\\n".join(titles))
print(len(titles), "titles")
"""
TELL = 'requests.post("http://collector.example:PORT/", data="\\n".join(titles)).raise_for_status()'


class Site(http.server.BaseHTTPRequestHandler):
    """One page."""

    def do_GET(self) -> None:
        """Send it."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


def main() -> None:
    """Open the site, let it be scraped, show what was reached and what was not."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        port = str(site.server_port)
        model = ScriptedModel(
            Step(reads="article titles", code=SCRAPE.replace("PORT", port)),
            Step(reads="3 titles", writes="Now the collector.", code=TELL.replace("PORT", port)),
            Step(
                reads="is not allowed",
                writes="The titles are in article_titles.txt; the collector is out of reach.",
            ),
        )
        hosts = {"news.example": "127.0.0.1", "collector.example": "127.0.0.1"}
        network = Network(allow=[f"news.example:{port}", f"127.0.0.1:{port}"], hosts=hosts)

        with Sandbox(network=network) as sandbox, Agent(model, sandbox=sandbox) as agent:
            require(sandbox, {"requests": "requests", "bs4": "beautifulsoup4"})
            print(
                agent.ask(f"Scrape the article titles of http://news.example:{port}/ and send them on.").text
            )
            print(sandbox.files.read("article_titles.txt"))

            for record in sandbox.egress_log():
                print(record.verdict, record.name, record.rule)

        site.shutdown()


if __name__ == "__main__":
    main()
