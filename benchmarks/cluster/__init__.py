"""Hosts as network namespaces of one machine; the entry is ``benchmarks/cluster/run.py``."""
