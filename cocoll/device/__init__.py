"""Communicators on GPUs: their side there, arrays, and calls as steps on a stream."""
