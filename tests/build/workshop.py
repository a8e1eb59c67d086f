"""A build of kernels without a compiler: sources, a stand-in for nvcc that does as it is told, a cache."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import chunkattn

NVCC = """#!{python}
import json, os, sys, time
home = {home!r}
told = json.load(open(os.path.join(home, "told.json")))
if sys.argv[1:] == ["--version"]:
    print("nvcc of the tests, release", told["version"])
    sys.exit()
output = sys.argv[sys.argv.index("-o") + 1]
def note(what):
    with open(os.path.join(home, "log"), "a") as log:
        log.write(what + " " + os.path.basename(output) + "\\n")
note("begin")
with open(output, "wb") as file:
    file.write(b"half")
    file.flush()
    time.sleep(told["seconds"])
    file.write(b" and half of " + " ".join(sys.argv).encode())
sys.stderr.write(told["says"])
note("end")
sys.exit(told["status"])
"""

VARIANTS = """
[kernels.scale]
source = "kernels/scale/launch.cu"

[kernels.wide]
source = "kernels/wide/launch.cu"
cutlass = true

[[variants]]
kernel = "scale"
arch = ["80", "90a"]

[[variants]]
kernel = "wide"
arch = ["80"]
head_dims = [[64, 64], [192, 128]]
dtype = ["bf16"]
kv_dtype = ["same", "e4m3"]
constants = {{ tile_rows = 64 }}
"""

PTXAS = """ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {shared} bytes smem, 532 bytes cmem[0]
"""


def ptxas_says(*, stack: int = 0, stores: int = 0, loads: int = 0, registers: int = 40, shared: int = 1024) -> str:
    return PTXAS.format(stack=stack, stores=stores, loads=loads, registers=registers, shared=shared)


@dataclass
class Workshop:
    """Folders of one test."""

    root: Path

    @property
    def csrc(self) -> Path:
        return self.root / "csrc"

    @property
    def home(self) -> Path:
        return self.root / "toolkit"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def libraries(self) -> Path:
        return self.cache / "kernels"

    @classmethod
    def set_up(cls, root: Path) -> Workshop:
        shop = cls(root)
        for name, text in {
            "variants.toml": VARIANTS.format(),
            "kernels/scale/launch.cu": '#include "kernels/scale/kernel.cuh"\n#include <cuda_runtime.h>\n',
            "kernels/scale/kernel.cuh": '#include "chunkattn/core/part.h"\n',
            "kernels/wide/launch.cu": "#include <cutlass/cutlass.h>\n",
            "include/chunkattn/core/part.h": "int part = 1;\n",
            "include/chunkattn/core/unrelated.h": "int unrelated;\n",
        }.items():
            shop.write(name, text)
        nvcc = shop.home / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(NVCC.format(python=sys.executable, home=str(shop.home)))
        nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
        shop.tell()
        return shop

    def write(self, name: str, text: str) -> Path:
        path = self.csrc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tell(self, *, version: str = "1.0", seconds: float = 0.0, says: str = ptxas_says(), status: int = 0) -> None:
        """What the stand-in compiler does from now on."""
        told = {"version": version, "seconds": seconds, "says": says, "status": status}
        (self.home / "told.json").write_text(json.dumps(told))

    def log(self) -> list[str]:
        """What the compiler did: "begin NAME", "end NAME"."""
        log = self.home / "log"
        return log.read_text().splitlines() if log.exists() else []

    def compiled(self) -> int:
        return sum(line.startswith("begin") for line in self.log())

    def scratch(self) -> list[str]:
        """Whatever unfinished builds have left."""
        work = self.libraries / ".work"
        return sorted(path.name for path in work.iterdir() if path.name != "lock") if work.exists() else []

    def published(self) -> list[str]:
        if not self.libraries.exists():
            return []
        return sorted(path.name for path in self.libraries.iterdir() if not path.name.startswith("."))

    def start(self, *names: str, **environment: str) -> subprocess.Popen[str]:
        """Builds variants in a process (and session) of its own, which does without torch: it starts at once."""
        package = Path(chunkattn.__file__).parent
        code = f"""
            import sys, types
            from pathlib import Path
            sys.modules["chunkattn"] = types.ModuleType("chunkattn")
            sys.modules["chunkattn"].__path__ = [{str(package)!r}]
            from chunkattn.build import builder, sources, variants
            sources.source_root = lambda: Path({str(self.csrc)!r})
            listed = {{v.name: v for v in variants.read(Path({str(self.csrc / "variants.toml")!r}))}}
            print("ready", flush=True)
            for name, library in builder.build([listed[name] for name in {list(names)!r}]).items():
                print(name, library.path.read_bytes()[:4].decode(), flush=True)
            """
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.root,
            start_new_session=True,
            env={
                **os.environ,
                "CHUNKATTN_CACHE": str(self.cache),
                "CUDA_HOME": str(self.home),
                **environment,
            },
        )


def kill_all(process: subprocess.Popen[str]) -> None:
    """kill -9 of the builder and of everything it started (ninja gives each of its children a group of its own)."""
    for entry in Path("/proc").iterdir():
        try:
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
        except (OSError, ValueError, IndexError):
            continue
        if session == process.pid:
            os.kill(int(entry.name), signal.SIGKILL)
    process.wait()
