"""PID 1 of a sandbox: serves the host's file, process and port requests as the guest's user; never runs user code."""
