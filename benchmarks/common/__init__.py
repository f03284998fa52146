"""The driver, the ranks, and what they share."""
