"""multiprocessing with fork: Pool over functions of the cell, Process, Queue, Pipe, Lock and Value."""

import multiprocessing
import os

context = multiprocessing.get_context("fork")


def square(number):
    return number * number, os.getpid()


def deliver(queue, lock, total, number):
    with lock:
        total.value += number

    queue.put(number)


if __name__ == "__main__":
    with context.Pool(3) as pool:
        answers = pool.map(square, range(50), chunksize=5)
        assert [value for value, _ in answers] == [n * n for n in range(50)]
        assert os.getpid() not in {pid for _, pid in answers}
        assert sorted(pool.imap_unordered(abs, [-1, -2])) == [1, 2]

    queue, lock, total = context.Queue(), context.Lock(), context.Value("i", 0)
    children = [context.Process(target=deliver, args=(queue, lock, total, n)) for n in range(5)]

    for child in children:
        child.start()

    assert sorted(queue.get(timeout=20) for _ in children) == list(range(5))

    for child in children:
        child.join(20)
        assert child.exitcode == 0

    assert total.value == 10

    here, there = context.Pipe()
    child = context.Process(target=there.send, args=({"over": "a pipe"},))
    child.start()
    assert here.recv() == {"over": "a pipe"}
    child.join(20)
    print("works")
