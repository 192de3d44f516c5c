"""The supervisor: keeps sandboxes, pool and limits in the host process, on the engine's loop."""
