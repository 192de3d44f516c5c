"""The folders of a sandbox that its user and the programs of the host name: paths inside it, never on the host.

The guest and the jail declare their own constants, because they import no module of the engine.
"""

from __future__ import annotations

# Where code and commands start, and what relative paths refer to.
HOME_PATH = "/home/user"
# Where data files are put, and where artifacts are collected from.
DATA_PATH = "/mnt/data"
# Where the interpreters of a sandbox find the packages of the guest.
GUEST_PACKAGES_PATH = "/opt/fumehood"
# Where an image's own Python finds the packages that the guest needs.
IMAGE_PACKAGES_PATH = "/opt/fumehood-packages"
