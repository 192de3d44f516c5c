"""Where sandboxes live, seen from the client: one port and its implementations."""
