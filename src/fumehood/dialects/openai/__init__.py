"""The dialect of OpenAI's containers: `/v1/containers` and their files, for the SDK's `client.containers`.

No other dialect may import it.
"""
