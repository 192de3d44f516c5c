"""What the native API takes and gives, as pydantic models: the source of its OpenAPI description."""
