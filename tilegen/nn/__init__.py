"""Programs as layers of PyTorch models, and PyTorch's layers as programs."""
