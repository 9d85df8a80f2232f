"""Digits, split by user: a small federated task."""
