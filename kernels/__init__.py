"""The arithmetic of the models, one folder an operation.

Each operation has a reference in plain torch, which is its specification, and where it pays a
faster backend that is tested against it. On the CPU every operation is row-invariant: a row's
result is bitwise the same whatever else is in the batch and however many threads there are.
"""
