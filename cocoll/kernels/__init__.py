"""Kernels: the C++ headers, and how specifications become code in memory."""
