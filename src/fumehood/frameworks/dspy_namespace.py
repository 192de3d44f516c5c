"""What code of DSPy finds in its namespace: `SUBMIT`, the variables of the call, and last values that come back whole.

Text for the sandbox, run there before each piece of code; the host runs none of it, and takes nothing from it but
bounded JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

VARIABLES_PATH = "/tmp/.fumehood-variables.json"  # noqa: S108 - a path inside the sandbox

# The function by which code ends a session with its answer; FIELDS is the list of names, or None.
_SUBMIT = """
def SUBMIT(*args, **kwargs):
    names = FIELDS
    if names is None:
        if len(args) != 1 or kwargs:
            raise TypeError("SUBMIT takes one value")
        values = {"output": args[0]}
    else:
        if args and kwargs or len(args) > len(names):
            raise TypeError(f"SUBMIT takes {names}, all by position or all by name")
        values = dict(zip(names, args)) if args else kwargs
        if set(values) != set(names):
            raise TypeError(f"SUBMIT takes {names}, and was given {sorted(values)}")
    try:
        values = __fumehood_plain__(values)
    except (TypeError, ValueError):
        values = {name: __fumehood_shown__(value) for name, value in values.items()}
    __fumehood_finish__(values)

def __fumehood_shown__(value):
    try:
        return __fumehood_plain__(value)
    except (TypeError, ValueError):
        return repr(value)
"""
# Plain values of last expressions come back as what they are, not as what they look like.
VALUE_KEY = "__fumehood_value__"
_VALUES = f"""
def __fumehood_values__():
    import json

    def plain(value):
        try:
            return {{{VALUE_KEY!r}: json.loads(json.dumps(value, allow_nan=False))}}
        except (TypeError, ValueError, RecursionError):
            return None

    formatter = get_ipython().display_formatter.formatters["application/json"]
    for kind in (str, int, float, bool, list, dict):
        formatter.for_type(kind, plain)

__fumehood_values__()
"""
LOAD = f"""
def __fumehood_load__():
    import json, os
    with open({VARIABLES_PATH!r}) as file:
        globals().update(json.load(file))
    os.unlink({VARIABLES_PATH!r})

__fumehood_load__()
"""


def namespace_code(names: Sequence[str] | None) -> str:
    """Return the definitions for a session whose answer has these fields, or is one value."""
    return _SUBMIT.replace("FIELDS", repr(None if names is None else [*names])) + _VALUES
