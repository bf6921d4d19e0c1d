"""Where plans run: the CPU (generated C++), the interpreter, a GPU (generated CUDA)."""
