"""Kept apart from `worker`, which runs as `__main__` and so would define it twice."""


class Broken(Exception):
    """In a worker: the call failed because what the worker stands for is of no more use; the host should
    start another."""
