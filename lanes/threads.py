"""BLAS on one thread, for whoever scores queries.

A query's products are small. Two BLAS threads halve their time at best, and on a machine with anything else to do they
wait for each other in a busy loop: 30 ms became 450. One thread also makes scores independent of the thread count.
"""

from __future__ import annotations

from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def one_blas_thread() -> int:
    """Hold NumPy's and SciPy's OpenBLAS to one thread from here on, and return how many there were.

    It is not undone: the worker that OpenBLAS would then start anew spins for a while, on the core that somebody else
    needs. Work that can be divided goes to Python threads, each with its own single-threaded products.
    """
    libraries = ThreadpoolController().select(internal_api="openblas").lib_controllers
    before = max((library.get_num_threads() for library in libraries), default=1)
    for library in libraries:
        library.set_num_threads(1)
    return before
