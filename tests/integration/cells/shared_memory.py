"""Shared memory by name between processes, and /dev/shm as a place for files."""

import multiprocessing
import os
from multiprocessing import shared_memory

import numpy as np


def fill(name, value):
    block = shared_memory.SharedMemory(name=name)
    np.frombuffer(block.buf, dtype="i8")[:] = value
    block.close()


if __name__ == "__main__":
    block = shared_memory.SharedMemory(create=True, size=8 * 1000)
    child = multiprocessing.get_context("fork").Process(target=fill, args=(block.name, 7))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert np.frombuffer(bytes(block.buf), dtype="i8").sum() == 7000
    assert block.name.lstrip("/") in os.listdir("/dev/shm")
    block.close()
    block.unlink()

    semaphore = multiprocessing.Semaphore(2)
    assert semaphore.acquire(timeout=5)

    with open("/dev/shm/scratch", "w+b") as file:
        file.write(b"x" * 1_000_000)
        assert os.path.getsize(file.name) >= 0

    os.remove("/dev/shm/scratch")
    print("works")
