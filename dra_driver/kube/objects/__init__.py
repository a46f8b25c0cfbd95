"""The Kubernetes objects that this project reads and writes, one struct each, whoever uses it.

The structs declare only the fields in use: decoding a list of 500 slices takes 20 ms this way, compared with 1 s with
the official client's models. Unknown fields are ignored on reading, unless the reader is strict (``kube.decoding``). An
object that was read is never written back whole.
"""
