"""The scorecard: hostile programs that are tried on the user's own machine, and what came of them.

Runs in the user's process, over the public sandbox. `rows` says what must hold, `probes` and `host_checks` how it is
tried, `attack` is the attacker's program, `running` tries it in every kind of process and, as a control, without a
sandbox. What could do harm where it succeeds is left to the tests.
"""
