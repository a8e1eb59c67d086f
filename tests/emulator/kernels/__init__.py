"""Kernels of the emulator's own tests: some right, some with one planted fault each."""
