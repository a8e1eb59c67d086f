"""vLLM's own server on loopback, as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


class Server:
    """A running server; a context manager that ends it.

    Attributes:
        log: file of everything it printed.
    """

    def __init__(self, model: Path, log: Path, *options: str, deadline: float = 540.0) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.log, self._deadline = log, deadline
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(self._port), *options]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        self._output = log.open("w")
        self._process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def __enter__(self) -> Server:
        begin = time.monotonic()
        while True:
            try:
                self.get("/health")
                return self
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() - begin > self._deadline:
                    self.close()
                    raise RuntimeError(f"vLLM did not start:\n{self.log.read_text()[-4000:]}") from error
                time.sleep(1.0)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server and the processes it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._output.close()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def complete(self, model: Path, prompt: list[int], tokens: int) -> list[int]:
        """Greedy token ids after a prompt's, over HTTP."""
        body: dict[str, Any] = {
            "model": str(model), "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["choices"][0]["token_ids"]

    def counter(self, name: str) -> float:
        """Sum of a Prometheus counter over its labels."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
