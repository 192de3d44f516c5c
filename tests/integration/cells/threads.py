"""Threads and both kinds of executors."""

import math
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed

if __name__ == "__main__":
    barrier = threading.Barrier(40)
    arrived = []
    threads = [threading.Thread(target=lambda: arrived.append(barrier.wait(20))) for _ in range(40)]

    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join(20)

    assert sorted(arrived) == list(range(40))

    with ThreadPoolExecutor(8) as pool:
        futures = {pool.submit(pow, 2, n): n for n in range(100)}
        assert all(future.result() == 2 ** futures[future] for future in as_completed(futures, timeout=20))

    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(math.isqrt, range(20))) == [math.isqrt(n) for n in range(20)]
        assert pool.submit(os.getpid).result(20) != os.getpid()

    print("works")
