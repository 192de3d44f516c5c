"""What the runtimes of Linux share: what the machine has, what sandboxes use of it, and the removal of their groups.

It knows no runtime.
"""
