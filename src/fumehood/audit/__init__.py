"""The audit record of a sandbox: entries in a hash chain, so that a later change shows, and its verification.

Runs in the host process, and in the user's terminal as `fumehood audit`. Entries are only added, never changed; a
record must not be taken as a security boundary.
"""
