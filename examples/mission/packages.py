"""Says what is missing in a sandbox before code is run that needs it; runs in your process.

The default template shows sandboxes the packages of the environment that fumehood is installed in.
"""

from __future__ import annotations

from fumehood import Sandbox

ADVICE = """
{missing}: not in the sandbox's environment. One of these brings it there:
- pip install {packages}, beside fumehood: the default template shows what is installed there
- fumehood template build NAME --requirements FILE, then Sandbox("NAME"): an environment of its own
- Sandbox(network=Network.pip()), and in it `%pip install {packages}`: for this one sandbox, from your package index
"""


def require(sandbox: Sandbox, packages: dict[str, str]) -> None:
    """End the program if one of these modules cannot be imported inside.

    Args:
        sandbox: Where they are needed.
        packages: Name of the package on the index, by name of its module.
    """
    missing = [module for module in packages if sandbox.run_code(f"import {module}").error]

    if missing:
        needed = " ".join(packages[module] for module in missing)
        raise SystemExit(ADVICE.format(missing=", ".join(missing), packages=needed).strip())
