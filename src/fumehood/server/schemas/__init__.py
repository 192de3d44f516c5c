"""The pydantic models of the native API: requests and responses, the source of its OpenAPI description.

A model must not do I/O.
"""
