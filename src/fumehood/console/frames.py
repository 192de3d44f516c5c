"""The documents in which a browser shows the HTML of guests: one constant text under two policies.

A frame made from a string (`srcdoc`, `blob:`) inherits the policy of the page, so that charts of a guest would need a
page that allows inline scripts. This document has a policy of its own, and an origin of its own (`sandbox` without
`allow-same-origin`): what is written into it reaches neither the page nor the API. The page waits for `ready`, then
passes the HTML and a port, through which the document reports its height.

Still frames run no script but this document's own, which its digest names; the page takes out what acts by itself,
since no policy holds a hint to connect to a host. In moving frames the scripts of a guest run: the viewer asks for
that, for one result. They load nothing, but no policy stops two ways out everywhere: WebRTC, and the hosts that a
browser looks up or connects to ahead of time. The policy of the page says to which documents a frame can be led.
"""

from __future__ import annotations

import base64
import hashlib

from starlette.responses import Response

# `document.open` removes the listeners of the window, but not the port.
SHIM = """
(() => {
  const page = window.parent;
  addEventListener("message", (event) => {
    if (event.source !== page || !event.data || typeof event.data.html !== "string") return;
    const port = event.ports[0];
    document.open();
    document.write(event.data.html);
    document.close();
    const tell = () => {
      const root = document.documentElement;
      const body = document.body;
      if (!root) return;
      const height = Math.max(root.getBoundingClientRect().height, body ? body.scrollHeight : 0);
      port.postMessage({ height: Math.ceil(height) });
    };
    new ResizeObserver(tell).observe(document.documentElement);
    addEventListener("load", tell);
    tell();
  });
  page.postMessage({ fumehood: "ready" }, "*");
})();
"""
DOCUMENT = (
    '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>From the sandbox</title>\n'
    f"<script>{SHIM}</script>\n</html>\n"
)
_SHIM_DIGEST = base64.b64encode(hashlib.sha256(SHIM.encode()).digest()).decode()

STILL_POLICY = (
    f"sandbox allow-scripts; default-src 'none'; script-src 'sha256-{_SHIM_DIGEST}'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; connect-src 'none'; frame-src 'none'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
MOVING_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; worker-src blob:; "
    "connect-src 'none'; frame-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; webrtc 'block'"
)
_HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), usb=(), serial=(), bluetooth=(), "
    "display-capture=(), clipboard-read=(), clipboard-write=(), fullscreen=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-store",
}


def frame(*, with_scripts: bool) -> Response:
    """Returns the document, under the policy of frames with or without scripts of a guest."""
    policy = MOVING_POLICY if with_scripts else STILL_POLICY
    headers = _HEADERS | {"Content-Security-Policy": policy}
    return Response(DOCUMENT, media_type="text/html", headers=headers)
