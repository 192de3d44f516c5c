"""The scorecard: hostile programs that are run on the user's own machine, and the result of each.

Runs in the user's process, over the public sandbox. `rows` says what must hold, `probes` and `host_checks` how it is
tested, `attack` is the attacker's program, `run` runs it in every kind of process and, as a control, without a
sandbox. It must not run an attack that would do harm if it succeeded: those are left to the tests.
"""
