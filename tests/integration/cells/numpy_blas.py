"""NumPy computes, and its BLAS starts as many threads as it is asked for."""

import os

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

rng = np.random.default_rng(7)
matrix = rng.standard_normal((600, 600))

with threadpool_limits(2, user_api="blas"):
    blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert {pool["num_threads"] for pool in blas} == {2}, blas
    product = matrix @ matrix.T

assert len(os.listdir("/proc/self/task")) > 1
assert np.allclose(product, product.T)
assert np.allclose(np.linalg.solve(product, product @ np.ones(600)), np.ones(600), atol=1e-3)
assert np.allclose(np.fft.irfft(np.fft.rfft(matrix[0])), matrix[0])
assert np.linalg.svd(matrix, compute_uv=False).shape == (600,)

mapped = np.memmap("/tmp/mapped", dtype="f8", mode="w+", shape=(100,))
mapped[:] = np.arange(100)
mapped.flush()
assert np.fromfile("/tmp/mapped").sum() == 4950
print("works")
