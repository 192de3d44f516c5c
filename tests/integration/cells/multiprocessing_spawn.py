"""multiprocessing with spawn and forkserver, over functions of modules, and a Manager's shared objects."""

import math
import multiprocessing
import operator

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(math.factorial, [3, 4, 5]) == [6, 24, 120], method
            assert pool.apply(operator.add, (40, 2)) == 42, method

    with multiprocessing.get_context("spawn").Manager() as manager:
        shared = manager.dict(numbers=manager.list([1, 2]))
        shared["numbers"].append(3)
        assert list(shared["numbers"]) == [1, 2, 3]

    print("works")
