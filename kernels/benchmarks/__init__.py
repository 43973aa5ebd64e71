"""Benchmarks of the kernels: named shapes, what a user would do instead, floors, and a runner that checks first."""
