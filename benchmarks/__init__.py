"""How cocoll is measured against other libraries; the entry is ``benchmarks/run.py``."""
