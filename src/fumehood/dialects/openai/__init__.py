"""The dialect of OpenAI's containers: `/v1/containers` and their files, for the SDK's `client.containers`.

Runs in the server process. No other dialect may import it.
"""
