"""The kernel for Hopper: TMA, wgmma, clusters."""
