"""The Triton backend: GPUs from sm_80 on, no compiler on the user's machine."""
