"""The command line: one file a command, over the public names, without logic of its own."""
