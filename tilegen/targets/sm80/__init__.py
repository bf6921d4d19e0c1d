"""The kernel for any GPU from Ampere on: cp.async, mma.sync; chains of linears."""
