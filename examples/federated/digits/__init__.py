"""A small federated task: handwritten digits, divided among users."""
