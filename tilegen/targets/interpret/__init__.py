"""The plan tile by tile in torch, under adversarial interleavings."""
