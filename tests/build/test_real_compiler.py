"""What nvcc makes of the listed kernels, where there is an nvcc: within bounds, no spills, PTX inside."""

from __future__ import annotations

import pytest

from chunkattn.build import builder, store
from chunkattn.build.variants import all_variants

SECONDS = 45.0  # of a processor
BYTES = 4 << 30  # of the largest process


@pytest.mark.parametrize("variant", all_variants(), ids=lambda variant: variant.name)
def test_a_listed_variant_is_as_kernels_must_be(variant):
    library = store.find(variant)
    if library is None and (variant.cutlass or builder.unbuildable_reason(variant)):
        pytest.skip("it is not built here")  # kernels with CUTLASS take minutes; their own tests build them
    if library is None:
        library = builder.build([variant], report=lambda line: None)[variant.name]
    if "cpu_seconds" not in library.manifest:
        pytest.skip("it was built before such things were written down")
    assert 0 < library.manifest["cpu_seconds"] <= SECONDS
    assert 0 < library.manifest["peak_bytes"] <= BYTES
    kernels = library.manifest["kernels"]
    assert kernels
    for name, used in kernels.items():
        assert used["spill_stores"] == used["spill_loads"] == 0, name
        assert 0 < used["registers"] <= 255, name
    flags = library.manifest["flags"]
    assert "-lineinfo" in flags
    assert f"arch=compute_{variant.arch},code=[sm_{variant.arch},compute_{variant.arch}]" in flags
    assert variant.launcher.encode() in library.path.read_bytes()
