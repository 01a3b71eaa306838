"""Callbacks and the workers that run them."""
