"""Linux primitives of the jail: one kernel concept a module, nothing but the standard library.

Most modules of this package run with privileges, before any guest code exists: in the launcher, in jail init and
zygote, and in the init of a sandbox. Those that look after a jail from outside, such as `cgroups`, `notify`,
`tracing` and the plan of `users`, run in the host process; each module says where it runs. They start no threads,
import nothing heavy and know no other package of the project. `launch` is the ordered list of steps, `syscalls` the
only file that uses `ctypes`, and `policies/` says what is permitted, as data.
"""
