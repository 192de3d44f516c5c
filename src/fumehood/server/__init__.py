"""The server: one app over one backend, spoken to in the native API and in the dialects of `fumehood.dialects`."""
