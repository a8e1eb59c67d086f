"""What a step computes, exactly: tokens, visible pairs of query and key, FLOPs, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from chunkattn.models import ModelConfig
from chunkattn.scheduler import Chunk


def visible_pairs(start: int, num_tokens: int, window: int | None = None) -> int:
    """Pairs of query and key that causal attention sees in a chunk.

    Args:
        start: position of the chunk's first token.
        num_tokens: its tokens.
        window: keys a query sees at most, itself included; None = all before it.
    """
    if window is None or start + num_tokens <= window:
        return num_tokens * start + num_tokens * (num_tokens + 1) // 2
    growing = min(max(window - start, 0), num_tokens)  # rows that see less than the window
    return growing * start + growing * (growing + 1) // 2 + (num_tokens - growing) * window


@dataclass(frozen=True, slots=True)
class StepWork:
    """Counts of one step.

    Attributes:
        num_tokens: rows through the linear layers, drafts included.
        num_prefill_tokens: those of prompts.
        num_requests: chunks.
        num_logits: rows of the vocabulary product.
        prefill_pairs, decode_pairs: visible pairs of query and key, as if no layer had a window.
        num_keys: cached tokens that are read, each once a chunk.
    """

    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_requests: int = 0
    num_logits: int = 0
    prefill_pairs: int = 0
    decode_pairs: int = 0
    num_keys: int = 0

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> StepWork:
        """Counts a step's chunks."""
        tokens = prefill = requests = logits = pairs = decode_pairs = keys = 0
        for _, start, length, is_decode, samples, _, drafts in chunks:
            requests += 1
            if is_decode and not drafts:
                tokens += 1
                logits += 1
                keys += start + 1
                decode_pairs += start + 1
                continue
            rows = length + drafts
            tokens += rows
            keys += start + rows
            logits += (1 + drafts) * samples
            seen = visible_pairs(start, rows)
            if is_decode:
                decode_pairs += seen
            else:
                prefill += rows
                pairs += seen
        return cls(tokens, prefill, requests, logits, pairs, decode_pairs, keys)

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class ModelWork:
    """FLOPs and bytes of a decoder, from its sizes.

    A multiply-add is two FLOPs. Softmax, norms and activations are left out, as everywhere in the field. Attention is
    counted by the pairs that are visible; counting query tokens times context, as some engines do, bills a whole
    prompt twice and makes chunked prefill look less efficient than it is.
    """

    def __init__(self, config: ModelConfig, bytes_per_element: int = 4) -> None:
        hidden, layers = config.hidden_size, config.num_layers
        heads = config.num_q_heads + 2 * config.num_kv_heads
        attention = hidden * config.head_dim * (heads + config.num_q_heads)
        self.linear_parameters = layers * (attention + 3 * hidden * config.intermediate_size)
        self.logits_parameters = hidden * config.vocab_size
        self.kv_bytes_per_token = 2 * layers * config.num_kv_heads * config.head_dim * bytes_per_element
        self.weight_bytes = (self.linear_parameters + self.logits_parameters) * bytes_per_element
        self._pair_flops = 4 * config.num_q_heads * config.head_dim
        self._windows: Mapping[int | None, int] = Counter(config.windows)
        self._layers = layers

    def step_flops(self, work: StepWork) -> float:
        """FLOPs of a step of a model without windows; an upper bound for one with them."""
        pairs = work.prefill_pairs + work.decode_pairs
        return self._flops(work.num_tokens, work.num_logits, pairs * self._layers)

    def span_flops(self, start: int, end: int, num_logits: int) -> float:
        """FLOPs of a request's tokens at positions start…end-1, however they are cut: windows are exact here."""
        length = max(end - start, 0)
        pairs = sum(n * visible_pairs(start, length, window) for window, n in self._windows.items())
        return self._flops(length, num_logits, pairs)

    def step_bytes(self, work: StepWork) -> float:
        """Bytes that have to move at least: the weights once, the cached keys and values read and written."""
        return self.weight_bytes + self.kv_bytes_per_token * (work.num_keys + work.num_tokens)

    def _flops(self, tokens: int, logits: int, pairs: int) -> float:
        return 2.0 * self.linear_parameters * tokens + 2.0 * self.logits_parameters * logits + self._pair_flops * pairs
