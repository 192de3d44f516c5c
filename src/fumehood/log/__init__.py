"""The log: its events, their formats, and its configuration.

Every line of fumehood is an event that `events` declares, with its level and its fields; other modules log in no
other way. A library logs below `fumehood` and is silent unless its program configures logging; `setup` is what the
server and the host daemon configure. No line holds code, output, a secret, or a value of the environment.
"""
