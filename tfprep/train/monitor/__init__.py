"""Watches the input while a model trains."""
