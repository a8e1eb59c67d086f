"""The public operators: defaults and allocation around the torch ops of `chunkattn.ops`."""
