"""Several machines behind one server: which machine makes a new sandbox.

Runs in the server process. It keeps no table of sandboxes, since their ids name the machine; it must not talk to a
machine, or decide about the owner of a sandbox.
"""
