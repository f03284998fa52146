"""The steps of ``benchmarks/gpu_check.py``."""
