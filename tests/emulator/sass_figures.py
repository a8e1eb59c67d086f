"""What an attention kernel's main loop consists of, counted in its machine code: without a GPU, and without times.

    python -m tests.emulator.sass_figures                    # ours, built now, beside the recorded ones of others
    python -m tests.emulator.sass_figures --record           # the same, and ours go into the record
    python -m tests.emulator.sass_figures --file F.cubin     # of any compiled kernel, as JSON

The main loop is the innermost loop with the most multiply-adds, and of those with as many the cheapest: the one
for blocks of keys that need no mask. Counted is the shortest way round it that has all its matrix instructions and
copies of 16 bytes, so that neither masks nor a second look at a barrier count. A kernel may leave out to rescale its
sums where no maximum has risen; the way with and the way without are two figures. Where other warps bring K and V
(sm_90) their instructions do not count.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chunkattn.backends.cuda import libraries
from chunkattn.build import builder, store, toolchain, variants
from chunkattn.build.variants import Variant
from chunkattn.testing import AttentionCase, build, laws

from .launch import PtxModule
from .sass_blocks import Blocks, count
from .session import emulated

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-sm90-static.json"
MATRIX = re.compile(r"\bHG?MMA\b")
_NEEDED = re.compile(rf"{MATRIX.pattern}|\bLDGSTS\S*\.128\b")
_FMUL = re.compile(r"\bFMUL\b")
_LOCAL = re.compile(r"\b(LDL|STL)\b")
# By the first part of the opcode; the first class that matches has it.
_CLASSES = (
    ("exp2, MUFU", r"MUFU"),
    ("FFMA", r"FFMA"),
    ("FMUL", r"FMUL"),
    ("FADD", r"FADD"),
    ("FMNMX", r"FMNMX3?"),
    ("conversions", r"F2FP?|I2FP?|F2IP?"),
    ("selects and compares of floats", r"FSEL|FSETP?"),
    ("shuffles and votes", r"SHFL|VOTEU?|REDUX|MATCH"),
    ("shared memory", r"LDSM?|STSM?|ATOMS"),
    ("local memory (spills)", r"LDL|STL"),
    ("global memory", r"LDG|STG|LDGSTS|UTMA\w+|ATOMG?|RED"),
    ("barriers and waits", r"SYNCS|BAR|WARPGROUP|DEPBAR|LDGDEPBAR|MEMBAR|FENCE|WARPSYNC|ARRIVES|ERRBAR|CCTL"),
    ("moves", r"U?MOV|R2UR|S2U?R|CS2R|U?LDCU?"),
    ("uniform integers", r"U\w+"),
    ("integers and predicates", r"I\w+|VI\w+|LEA|LOP3|SHF|PRMT|SEL|PLOP3|P2R|R2P|POPC|FLO|BREV"),
    ("branches, NOP", r"BRA|BRX|CALL|RET|EXIT|JMP|NOP|BSSY|BSYNC|BREAK|YIELD|BMOV"),
)


@dataclass(frozen=True)
class Way:
    """One round of a warp through the main loop.

    Attributes:
        matrix: matrix instructions.
        multiply_adds: of the warp in them.
        classes: how many other instructions there are of each class.
    """

    matrix: int
    multiply_adds: int
    classes: dict[str, int]

    @property
    def others(self) -> int:
        return sum(self.classes.values())

    def normalised(self, head_dim: int) -> dict[str, float]:
        """Other instructions by matrix instruction, by the work of a wgmma of 64x128x16, and by score of a lane."""
        scores = self.multiply_adds / (2 * head_dim) / 32
        return {
            "per_matrix_instruction": round(self.others / self.matrix, 3),
            "per_64x128x16": round(self.others / (self.multiply_adds / (16 * 128 * 16)), 3),
            "per_score_of_a_lane": round(self.others / scores, 3),
        }


@dataclass(frozen=True)
class Figures:
    """What a kernel needs, and its main loop.

    Attributes:
        registers: of a thread at the launch.
        registers_raised, registers_lowered: what warps ask for later, and what they keep.
        stack_bytes: of a thread.
        local_accesses, loop_local_accesses: instructions for spilled registers, in the kernel and in one round.
        shortest: the shortest way.
        rescaling: the shortest way on which the sums are rescaled.
    """

    registers: int
    registers_raised: tuple[int, ...]
    registers_lowered: tuple[int, ...]
    stack_bytes: int
    local_accesses: int
    loop_local_accesses: int
    shortest: Way
    rescaling: Way

    def as_json(self, head_dim: int) -> dict[str, Any]:
        values = asdict(self)
        for name in ("shortest", "rescaling"):
            way: Way = getattr(self, name)
            values[name].update(others=way.others, **way.normalised(head_dim))
        return values


@dataclass(frozen=True)
class Kernel:
    """One of ours, and what it is to be compared with.

    Attributes:
        variant: its name in the list of variants.
        warp_rows: query rows of a warp.
        shape: of the record that holds the others.
    """

    variant: str
    warp_rows: int
    shape: str
    head_dim: int = 128

    def listed(self) -> Variant:
        (found,) = [each for each in variants.all_variants() if each.name == self.variant]
        return found

    def built(self) -> Figures:
        """Builds it, unless that has been done, and counts."""
        library = builder.build([self.listed()])[self.variant]
        return figures(library.path, self.head_dim, self.warp_rows)


OURS = {
    "sm90": Kernel("attention_sm90-d128-bf16-sm90a", 16, "sm90"),
    "sm90 d256": Kernel("attention_sm90-d256-bf16-sm90a", 16, "sm90 d256", 256),
    "sm80": Kernel("attention_sm80-d128-bf16-sm80", 32, "sm80"),
}


def disassembler() -> str | None:
    """cuobjdump of the PATH, or the one that Triton brings."""
    found = shutil.which("cuobjdump")
    if found is None:
        try:
            import triton
        except ImportError:
            return None
        candidate = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        found = str(candidate) if candidate.is_file() else None
    return found


def compiler() -> str:
    """nvcc with its version; "" where there is none."""
    found = re.search(r"\bV(\d[\d.]*)", toolchain.compiler_identity() or "")
    return f"nvcc {found.group(1)}" if found else ""


def unavailable_reason(kernel: Kernel) -> str | None:
    """Why its figures cannot be taken here; None if they can."""
    if disassembler() is None:
        return "cuobjdump is not installed"
    if isinstance(reason := libraries.native(), str):
        return reason
    variant = kernel.listed()
    return None if store.find(variant) else builder.unbuildable_reason(variant)


def figures(path: Path, head_dim: int, warp_rows: int) -> Figures:
    """Of the one kernel with matrix instructions in a cubin or a library."""
    text, used = machine_code(path), _printed("-res-usage", path)
    name = text.split()[0]
    resources = re.search(rf"Function {re.escape(name)}:\s+REG:(\d+) STACK:(\d+)", used)
    assert resources is not None, used
    limits = [(raises, int(limit, 16)) for raises, limit in re.findall(r"USETMAXREG\.(TRY_ALLOC)?.*?0x(\w+) ;", text)]
    shortest, rescaling = main_loop(text, warp_rows * head_dim // 32)
    return Figures(
        int(resources.group(1)),
        tuple(limit for raises, limit in limits if raises),
        tuple(limit for raises, limit in limits if not raises),
        int(resources.group(2)),
        count(_LOCAL, text.splitlines()),
        rescaling.classes.get("local memory (spills)", 0),
        shortest,
        rescaling,
    )


def machine_code(path: Path) -> str:
    """Name and instructions of the one kernel with matrix instructions in a cubin or a library."""
    functions = re.split(r"^\s*Function : ", _printed("-sass", path), flags=re.MULTILINE)[1:]
    (text,) = [each for each in functions if MATRIX.search(each)]
    return text


def main_loop(sass: str, sums: int) -> tuple[Way, Way]:
    """The shortest way round the main loop, and the one that multiplies so many sums of a lane."""
    blocks = Blocks(sass)
    found = []
    for head, body in blocks.innermost(MATRIX).items():
        ways = [blocks.way_round(head, body, _NEEDED, _FMUL, least) for least in (0, sums)]
        if all(ways):
            found.append(tuple(_way(blocks.text(way)) for way in ways if way))
    assert found, f"expected a loop with matrix instructions that rescales {sums} sums, got none"
    shortest, rescaling = min(found, key=lambda ways: (-ways[0].multiply_adds, ways[0].others))
    return shortest, rescaling


def _way(text: Sequence[str]) -> Way:
    matrix = [line for line in text if MATRIX.search(line)]
    classes = Counter(class_of(line) for line in text if not MATRIX.search(line))
    return Way(len(matrix), sum(map(_multiply_adds, matrix)), dict(sorted(classes.items())))


def _multiply_adds(instruction: str) -> int:
    """Of a warp; a wgmma is shared by four."""
    if shape := re.search(r"HGMMA\.(\d+)x(\d+)x(\d+)", instruction):
        rows, columns, depth = map(int, shape.groups())
        return rows // 4 * columns * depth
    shape = re.search(r"HMMA\.16(8)(8|16)\.", instruction)
    assert shape is not None, instruction
    return 16 * 8 * int(shape.group(2))


def class_of(instruction: str) -> str:
    """The class that an instruction counts in."""
    if instruction.startswith("@!PT "):
        return "branches, NOP"  # never executed
    opcode = re.sub(r"^@\S+\s+", "", instruction).split()[0]
    if re.match(r"IMAD\.(MOV|U32)", opcode):
        return "moves"
    base = opcode.split(".")[0]
    return next((name for name, pattern in _CLASSES if re.fullmatch(pattern, base)), "others")


def _printed(option: str, path: Path) -> str:
    program = disassembler()
    assert program is not None
    return subprocess.run([program, option, str(path)], capture_output=True, text=True, check=True).stdout


def shared_bytes(kernel: Kernel) -> int:
    """What a launch of it asks for, in the emulator."""
    asked: list[int] = []
    with emulated(80 if kernel.shape == "sm80" else 90) as session:
        launch = session.launch

        def noted(module: PtxModule, name: str, grid: Any, block: Any, values: Any, size: int, *rest: Any) -> Any:
            if "attention_kernel" in name:
                asked.append(size)
            return launch(module, name, grid, block, values, size, *rest)

        session.launch = noted  # type: ignore[method-assign]
        laws.operator("cuda")(build(AttentionCase("small", (2,), (20,), head_dim=kernel.head_dim)))
    return asked[0]


def table(shape: dict[str, Any]) -> str:
    """Markdown: ours and the others of a record's shape, a column each."""
    entries = [("ours", "shortest", shape["ours"]), ("ours, sums rescaled", "rescaling", shape["ours"])]
    entries += [(name, "rescaling", peer) for name, peer in shape["peers"].items()]
    ways = [entry["figures"][way] for _, way, entry in entries]

    def row(name: str, values: Iterable[Any]) -> str:
        return "| " + " | ".join([name, *map(str, values)]) + " |"

    def registers(found: dict[str, Any]) -> str:
        later = [str(limit) for limit in (*found["registers_raised"], *found["registers_lowered"])]
        return f"{found['registers']}" + (f" ({' / '.join(later)})" if later else "")

    classes = [name for name in [name for name, _ in _CLASSES] + ["others"] if any(name in w["classes"] for w in ways)]
    return "\n".join(
        [
            row("a round of a warp", [name for name, *_ in entries]),
            row("---", ["---"] * len(entries)),
            row("rows × keys of a tile", [entry["tile"] for *_, entry in entries]),
            row("matrix instructions", [way["matrix"] for way in ways]),
            *(row(name, [way["classes"].get(name, 0) for way in ways]) for name in classes),
            row("**all but matrix instructions**", [f"**{way['others']}**" for way in ways]),
            row("… by matrix instruction", [f"{way['per_matrix_instruction']:.2f}" for way in ways]),
            row("… by the work of a wgmma of 64×128×16", [f"{way['per_64x128x16']:.2f}" for way in ways]),
            row("… by score of a lane", [f"{way['per_score_of_a_lane']:.2f}" for way in ways]),
            row("registers at launch (later)", [registers(entry["figures"]) for *_, entry in entries]),
            row("stack bytes of a thread", [entry["figures"]["stack_bytes"] for *_, entry in entries]),
            row("spill instructions in the loop", [entry["figures"]["loop_local_accesses"] for *_, entry in entries]),
            row("threads of a CTA", [entry["threads"] for *_, entry in entries]),
            row("shared memory of a CTA", [entry["shared_bytes"] for *_, entry in entries]),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="a cubin or library with one kernel that has matrix instructions")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--warp-rows", type=int, default=16, help="query rows of a warp")
    parser.add_argument("--record", action="store_true", help=f"write ours into {RECORD.name}")
    options = parser.parse_args(arguments)
    if options.file:
        found = figures(options.file, options.head_dim, options.warp_rows)
        print(json.dumps(found.as_json(options.head_dim), indent=1))
        return
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    if compiler() != record["compiler"]:
        parser.error(
            f"the record is of {record['compiler']}, this is {compiler() or 'no nvcc'}: figures do not compare"
        )
    for shape, kernel in OURS.items():
        if reason := unavailable_reason(kernel):
            parser.error(f"{kernel.variant}: {reason}")
        ours = record["shapes"][shape]["ours"]
        ours.update(
            sources=store.key_of(kernel.listed()).sources,
            figures=kernel.built().as_json(kernel.head_dim),
            shared_bytes=shared_bytes(kernel),
        )
        print(f"\n{kernel.variant}\n\n{table(record['shapes'][shape])}")
    if options.record:
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
