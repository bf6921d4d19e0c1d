"""A Program as ops on tensors, its dependences, and the rewrites of it."""
