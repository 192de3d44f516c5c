"""Processes that handle the content of container images: each one jailed, for one layer or one step."""
