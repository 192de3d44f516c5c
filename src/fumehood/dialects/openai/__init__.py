"""OpenAI's containers: `/v1/containers` and their files, as the SDK's `client.containers` speaks of them."""
