"""The builder of GPU kernel libraries: csrc/variants.toml -> ninja -> one shared library a variant, in a cache.

========== ====================================================================================
variants   the list of instantiations
sources    where the kernel sources are, what a variant includes, its content hash
toolchain  nvcc, ninja, CUTLASS headers: found, or missing with one sentence
store      the libraries that are there: package and cache directory, keyed by content
builder    builds what is missing: ninja, locks, progress
step       one compilation, run by ninja as a script of its own: lock, nvcc, ptxas's verdict, publish
========== ====================================================================================

Nothing here needs a GPU, and nothing but `builder` needs a compiler.
"""
