"""The console: the web page that `fumehood serve` shows at /console/.

Runs in the server process. A folder of constants: the built page (`dist/`, made from `web/` by `make console` or by the
build of the wheel), two frame documents for what guests display, and the policies under which a browser shows them.
It does not use sandboxes and needs no token; the page gets its data from the native API with the viewer's own login.
It can be removed: the server looks for it by name, and no other package imports it.
"""
