"""The executor for GPUs: the driver's table, memory that peers reach, operations on streams."""
