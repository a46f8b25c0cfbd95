"""A simulated node: the driver's real code, in one thread, where a seed decides who goes on and what fails.

``scheduler`` has time, threads and locks; ``seams`` is where the code meets its node; ``apiserver`` and ``kubelet`` are
what it talks to; ``node`` is the whole, with the instances of the driver on it; ``histories`` lets things happen to it,
and ``oracle`` says what must hold.
"""
