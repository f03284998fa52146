"""A whole training step in torch: the suite ``training``."""
