"""The egress proxy, the only way out of a sandbox: checks each destination, dials it and records it.

Runs in the host process, on the engine's loop. The bytes come from a hostile guest: the proxy refuses requests that
it does not understand, and must never do more than the policy permits.
"""
