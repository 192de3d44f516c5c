"""What the host and a guest say to each other: frames, messages and their order, without any I/O.

Both sides of the border import this package: the host in its engine, the guest in init and in every context.
Bytes go in, checked messages come out. It needs the standard library only, opens nothing, waits for nothing,
and treats every byte as written by an enemy.
"""
