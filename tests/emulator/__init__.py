"""Runs GPU kernels without a GPU: a PTX emulator with checks and adversarial timing (see README.md)."""
