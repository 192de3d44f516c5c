"""The folders of a sandbox as code inside it sees them, for all processes of the guest."""

# Where code and commands start, and what relative paths refer to.
HOME = "/home/user"
DATA = "/mnt/data"
