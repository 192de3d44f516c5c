"""What the runtimes of Linux share: what the machine has, what sandboxes use of it, and the removal of their groups.

Runs in the host process, on the engine's loop. It knows no runtime.
"""
