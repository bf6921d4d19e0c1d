"""The CUDA text of a kernel run on the CPU: templates/emulator is the machine, translate.py reads texts."""
