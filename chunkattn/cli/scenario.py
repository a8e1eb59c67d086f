"""The demo's story: who asks what, and when the long document arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

from chunkattn.models import Model, Tokenizer
from chunkattn.models.activation_memory import peak_activation_bytes
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig, slots_needed
from chunkattn.serving import Engine, ModelExecutor, RequestTimes, StepMetadata, StepRecord, request_times

PAGE_SIZE = 16
DOCUMENT = "document"
DOCUMENT_QUESTION = "What is the main idea of this text? Answer in two sentences."
CHATS = {
    "ada": "Explain to a child how a bicycle stays upright.",
    "ben": "Write the beginning of a story about a lighthouse keeper.",
    "cleo": "Give me five ideas for a rainy Sunday and explain each of them.",
    "dan": "Why is the sky blue, and why are sunsets red?",
}
TOKENS_BEFORE_DOCUMENT = 8


@dataclass(frozen=True)
class Prompt:
    """One user's prompt as tokens."""

    user: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Scenario:
    """Chat users who are being answered, and the document that arrives then.

    Attributes:
        chats: the prompts that are there from the start.
        document: the long prompt; arrives when every chat user has `TOKENS_BEFORE_DOCUMENT` tokens (or is done).
        max_tokens: longest answer.
        eos_token_ids: tokens that end an answer.
    """

    chats: tuple[Prompt, ...]
    document: Prompt
    max_tokens: int
    eos_token_ids: frozenset[int]

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return (*self.chats, self.document)

    @property
    def num_pages(self) -> int:
        """Pages that hold everybody at once."""
        slots = [slots_needed(len(prompt.token_ids), self.max_tokens) for prompt in self.prompts]
        return sum(-(-slot // PAGE_SIZE) for slot in slots)


def built_in_document() -> str:
    """The text the package ships."""
    return resources.files("chunkattn.cli").joinpath("data/long_message.txt").read_text(encoding="utf-8")


def build_scenario(tokenizer: Tokenizer, document: str, max_tokens: int, max_positions: int) -> Scenario:
    """Tokenises the story.

    Args:
        tokenizer: the model's.
        document: the long text.
        max_tokens: longest answer.
        max_positions: what the model can hold of prompt and answer.

    Raises:
        ValueError: the document is empty or too long for the model.
    """
    if not document.strip():
        raise ValueError("--prompt-file: expected some text, got none")
    prompt = Prompt(DOCUMENT, tuple(tokenizer.encode_chat(f"{document.strip()}\n\n{DOCUMENT_QUESTION}")))
    if slots_needed(len(prompt.token_ids), max_tokens) > max_positions:
        raise ValueError(
            f"--prompt-file: expected at most {max_positions - max_tokens + 1} tokens (the model holds {max_positions} "
            f"with the answer), got {len(prompt.token_ids)}"
        )
    chats = tuple(Prompt(user, tuple(tokenizer.encode_chat(text))) for user, text in CHATS.items())
    return Scenario(chats, prompt, max_tokens, tokenizer.eos_token_ids)


class ScenarioRun:
    """One run of a scenario.

    Attributes:
        token_budget: tokens of a step; None runs prompts whole.
        requests: everybody's request by user, in the scenario's order.
        steps: what has run so far.
    """

    def __init__(
        self,
        model: Model,
        scenario: Scenario,
        token_budget: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Queues the chat users.

        Args:
            model: what answers.
            scenario: who asks what.
            token_budget: tokens of a step; None runs prompts whole.
            clock: seconds, monotonic.

        Raises:
            ValueError: a budget that could not give every user a token in every step.
        """
        self.token_budget = token_budget
        self._scenario = scenario
        self._model = model
        config = SchedulerConfig(
            token_budget=token_budget,
            max_num_seqs=len(scenario.prompts),
            page_size=PAGE_SIZE,
            num_pages=scenario.num_pages,
            enable_prefix_caching=False,  # nobody's prompt is to be shorter than it looks
        )
        self._executor = ModelExecutor(model.decoder, num_pages=scenario.num_pages, page_size=PAGE_SIZE)
        self._engine = Engine(Scheduler(config), self._executor, clock=clock)
        self.requests = {
            prompt.user: Request(prompt.user, prompt.token_ids, scenario.max_tokens, scenario.eos_token_ids)
            for prompt in scenario.prompts
        }

    @property
    def steps(self) -> list[StepRecord]:
        return self._engine.steps

    @property
    def least_margin(self) -> float:
        """Smallest distance between the two best logits of any sampled token."""
        return self._executor.least_margin

    def run(self) -> Iterator[StepRecord]:
        """Runs step by step until everybody has an answer."""
        chats = [self.requests[prompt.user] for prompt in self._scenario.chats]
        for request in chats:
            self._engine.add_request(request)
        arrived = False
        while self._engine.scheduler.has_work or not arrived:
            if not arrived and all(_has_begun(request) for request in chats):
                self._engine.add_request(self.requests[DOCUMENT])
                arrived = True
            yield self._engine.step()

    def times(self) -> dict[str, RequestTimes]:
        """When everybody's tokens came, by user."""
        return request_times(self.steps)

    def peak_activation_bytes(self) -> int:
        """Most memory a step's tensors took beside weights and cache.

        Runs the largest steps again, untimed, with every tensor followed; memory depends on shapes only, so that what
        the cache holds by then does not matter.
        """
        # Activations grow with tokens, logits with users, a split-KV workspace with keys: the largest of each.
        largest = (
            max(self.steps, key=lambda step: (step.batch.num_tokens, _num_keys(step))),
            max(self.steps, key=lambda step: (len(step.batch.sampling), step.batch.num_tokens, _num_keys(step))),
            max(self.steps, key=lambda step: (_num_keys(step), step.batch.num_tokens)),
        )
        device = self._model.decoder.device

        def peak(step: StepRecord) -> int:
            return peak_activation_bytes(
                lambda: self._executor.forward(StepMetadata.of(step.batch, PAGE_SIZE, device)), device
            )

        return max(peak(step) for step in {id(step): step for step in largest}.values())


def _num_keys(step: StepRecord) -> int:
    return sum(chunk.end for chunk in step.batch.chunks)


def _has_begun(request: Request) -> bool:
    return len(request.output_token_ids) >= TOKENS_BEFORE_DOCUMENT or request.status.is_finished
