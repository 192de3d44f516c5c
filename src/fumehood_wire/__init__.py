"""The protocol between the host and a guest: frames, messages and their order, without any I/O.

Imported on both sides: by the engine in the host process, and by init and every context in the sandbox. It takes bytes
and returns checked messages. It needs the standard library only, must not open or wait for anything, and treats every
byte as hostile.
"""
