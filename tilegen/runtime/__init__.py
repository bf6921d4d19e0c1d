"""What kernels of all targets stand on: driver, NVRTC, cache, arguments, requests."""
