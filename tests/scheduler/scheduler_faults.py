"""Ways to break a rule of the scheduler, each with the test that notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType

import test_drafts as drafts
import test_external_tokens as external
import test_policies as policies
import test_prefix_cache as cache
import test_scheduler_cases as cases

from chunkattn.scheduler import Fair, PagePool, Scheduler, SchedulerConfig, Sjf


@dataclass(frozen=True)
class Fault:
    """One wrong line, and who notices.

    Attributes:
        name: what is wrong.
        method: where, as the class that defines it has it.
        right, wrong: the text that is replaced, exactly once.
        killer: the test that must fail.
        arguments: of the test.
    """

    name: str
    method: FunctionType
    right: str
    wrong: str
    killer: Callable[..., None]
    arguments: tuple[object, ...] = ()


FAULTS = [
    Fault(
        "a full hit leaves nothing to compute",
        Scheduler._admit,
        "(request.num_tokens - 1) // self.config.page_size",
        "request.num_tokens // self.config.page_size",
        cache.test_full_hit_still_computes_the_last_token,
        (32, 16),
    ),
    Fault(
        "pages are found before they are full",
        Scheduler._commit,
        "request.num_computed_tokens // self.config.page_size",
        "-(-request.num_computed_tokens // self.config.page_size)",
        cache.test_full_hit_still_computes_the_last_token,
        (33, 32),
    ),
    Fault(
        "pages are found while their step runs",
        Scheduler._admit,
        "computing.update(self._keys_computed(request, prefills[request]))",
        "request.num_computed_tokens += prefills[request]; self._commit(request); "
        "request.num_computed_tokens -= prefills[request]",
        cache.test_pages_computed_for_an_aborted_step_are_not_found,
    ),
    Fault(
        "hash without the page before",
        Scheduler._extend_keys,
        "parent = keys[-1][0] if keys else",
        "parent = b'' if keys else",
        cache.test_equal_pages_of_one_prompt_are_told_apart,
    ),
    Fault(
        "hash without the extra keys",
        Scheduler._extend_keys,
        "repr(request.extra_keys).encode()",
        "repr([value for _, value in request.extra_keys]).encode()",
        cache.test_adapter_and_salt_of_one_name_share_nothing,
    ),
    Fault(
        "a hash is believed",
        PagePool.match,
        "entry.tokens != tokens or ",
        "",
        cache.test_equal_hashes_of_different_tokens_share_nothing,
        (([1] * 33, [2] * 33),),
    ),
    Fault(
        "a collision is committed over",
        PagePool.commit,
        "return entry if entry.tokens == tokens and entry.parent == parent else None",
        "return entry",
        cache.test_nothing_is_found_behind_a_collision,
    ),
    Fault(
        "a match does not ask what comes before",
        PagePool.match,
        " or entry.parent != parent",
        "",
        cache.test_equal_pages_after_different_beginnings_share_nothing,
    ),
    Fault(
        "an evicted page is still found",
        PagePool.alloc,
        "self._forget(page)",
        "pass",
        cache.test_a_page_that_is_handed_out_again_is_forgotten,
    ),
    Fault(
        "pages cut off by an eviction are kept",
        PagePool.commit,
        "self._forget(entry.page)\n                entry = None",
        "pass",
        cache.test_a_match_stops_at_the_first_missing_page,
    ),
    Fault(
        "the beginning of a chain is forgotten first",
        PagePool.release,
        "in reversed(pages)",
        "in pages",
        cache.test_the_end_of_a_chain_is_forgotten_first,
    ),
    Fault(
        "shared pages are freed by the first who leaves",
        PagePool.release,
        "if not self.references[page]:",
        "if True:",
        cache.test_shared_pages_are_released_once_each,
    ),
    Fault(
        "a hit does not hold its pages",
        PagePool.acquire,
        "self.references[page] += 1",
        "pass",
        cache.test_full_hit_still_computes_the_last_token,
        (33, 32),
    ),
    Fault(
        "hit pages on the free list are counted twice",
        Scheduler._take_pages,
        "need + revived + reserve",
        "need + reserve",
        cache.test_hit_pages_that_nobody_holds_count_as_taken,
    ),
    Fault(
        "new pages are taken before the hit is held",
        Scheduler._take_pages,
        "pool.acquire(request.block_table)\n        request.block_table += pool.alloc(need)",
        "fresh = pool.alloc(need)\n        pool.acquire(request.block_table)\n        request.block_table += fresh",
        cache.test_a_hit_survives_the_allocation_beside_it,
    ),
    Fault(
        "one beginning is computed by everybody",
        Scheduler._admit,
        "keys[len(hit)][0] in computing",
        "False",
        cache.test_requests_with_one_beginning_wait_for_it_instead_of_computing_it_again,
    ),
    Fault(
        "waiting for a page stops the line",
        Scheduler._admit,
        "i += 1  # its next page is being computed in this step: wait and share it\n                continue",
        "break",
        cache.test_waiting_for_a_page_holds_up_nobody_else,
    ),
    Fault(
        "pages leak when a request ends",
        Scheduler._finish,
        "self._drop_pages(request)",
        "request.block_table = []",
        cases.test_two_prompts_larger_than_the_pool_together_finish_one_after_the_other,
    ),
    Fault(
        "a preempted request keeps its progress",
        Scheduler._preempt,
        "request.num_computed_tokens = request.num_external_tokens = 0",
        "pass",
        external.test_handed_over_request_recomputes_its_prompt_after_a_preemption,
    ),
    Fault(
        "an aborted request gets a token",
        Scheduler.update,
        "if chunk.request.status is Status.RUNNING",
        "if True",
        cases.test_abort_gives_back_pages_and_emits_nothing,
        ("in flight",),
    ),
    Fault(
        "alignment cuts a chunk to nothing",
        Scheduler._chunk_len,
        "if aligned > request.num_computed_tokens else available",
        "",
        cases.test_cut_chunks_end_at_the_alignment_unless_that_is_nothing,
    ),
    Fault(
        "alignment of the length instead of the end",
        Scheduler._chunk_len,
        "aligned = end - end % self.config.chunk_alignment",
        "aligned = end - available % self.config.chunk_alignment",
        cases.test_cut_chunks_end_at_the_alignment_unless_that_is_nothing,
    ),
    Fault(
        "the cap wastes what it keeps",
        Scheduler.schedule,
        "if budget <= 0:\n                break",
        "break",
        policies.test_cap_lets_a_short_prompt_pass_a_long_one,
    ),
    Fault(
        "handed back tokens are not charged",
        Scheduler.schedule,
        "budget -= prefills[request] - length",
        "pass",
        policies.test_cap_is_no_smaller_than_an_even_share_of_three,
    ),
    Fault(
        "the cap holds for a lone prompt",
        Scheduler._long_prefill_cap,
        "max(threshold, budget // requests) if threshold and requests > 1",
        "threshold if threshold",
        policies.test_cap_is_no_smaller_than_an_even_share,
    ),
    Fault(
        "requests are admitted in a step that preempted",
        Scheduler.schedule,
        "if not preempted:",
        "if True:",
        cases.test_nobody_is_admitted_in_a_step_that_preempted,
    ),
    Fault(
        "a request that cannot fit is queued",
        Scheduler.add_request,
        "self.pool.pages_for(slots) > self.pool.num_pages",
        "False",
        cases.test_request_beyond_the_pool_is_refused_and_blocks_nobody,
        (64,),
    ),
    Fault(
        "a request that just fits is refused",
        Scheduler.add_request,
        "self.pool.pages_for(slots) > self.pool.num_pages",
        "self.pool.pages_for(slots + 1) > self.pool.num_pages",
        cases.test_request_that_fills_the_pool_finishes,
        (63,),
    ),
    Fault(
        "the first in policy order is preempted",
        Scheduler._place_decodes,
        "preempted.append(self.running[-1])",
        "preempted.append(self.running[0])",
        policies.test_the_last_in_policy_order_is_preempted,
        ("fcfs",),
    ),
    Fault(
        "a victim goes to the end of the line",
        Scheduler._preempt,
        "insort(self.waiting, request, key=_ORDER)",
        "self.waiting.append(request)",
        cases.test_a_victim_keeps_its_place_in_line,
    ),
    Fault(
        "decodes are not charged to the budget",
        Scheduler.schedule,
        "budget -= len(decodes)\n        cap",
        "cap",
        cases.test_decode_never_waits_for_a_long_prompt,
    ),
    Fault(
        "decodes wait while a prompt runs",
        Scheduler.schedule,
        "if not config.prefill_first:",
        "if not self.waiting:",
        cases.test_decode_never_waits_for_a_long_prompt,
    ),
    Fault(
        "the watermark holds for a lone request",
        Scheduler._take_pages,
        " if self.running else 0",
        "",
        cases.test_watermark_keeps_pages_free_only_while_others_run,
    ),
    Fault(
        "a one-token chunk is a decode",
        Scheduler.schedule,
        "length, False, samples",
        "length, length == 1, samples",
        cases.test_one_token_chunk_at_the_end_of_a_prompt_is_a_prefill,
    ),
    Fault(
        "a chunk of a prompt samples",
        Scheduler.schedule,
        "samples = start + length == request.num_tokens",
        "samples = True",
        cases.test_prompt_is_cut_into_equal_chunks,
    ),
    Fault(
        "the head of the line is passed",
        Scheduler._admit,
        "break  # the head of the line keeps its place",
        "i += 1\n                continue",
        cases.test_the_head_of_the_line_keeps_its_place,
    ),
    Fault(
        "guesses are made beyond max_tokens",
        Scheduler._place_drafts,
        "len(request.output_token_ids) - 1)",
        "len(request.output_token_ids))",
        drafts.test_guesses_take_only_pages_that_are_free_and_stay_within_max_tokens,
        (9,),
    ),
    Fault(
        "guesses take budget from prompts",
        Scheduler._place_drafts,
        "min(budget, self.config",
        "min(99, self.config",
        drafts.test_guesses_take_only_budget_that_nobody_wants,
    ),
    Fault(
        "tokens after an end token are kept",
        Scheduler.update,
        "if status is not None:\n                        break",
        "pass",
        drafts.test_guesses_end_at_an_end_token,
    ),
    Fault(
        "shortest prompts never age",
        Sjf.on_add,
        "self._aging * num_served_tokens",
        "0.0",
        policies.test_ageing_bounds_how_often_a_long_prompt_is_overtaken,
        (1.0, 4),
    ),
    Fault(
        "recomputed tokens are charged again",
        Scheduler.update,
        "new = end - max(start, min(end, request.num_charged_tokens))",
        "new = end - start",
        policies.test_recomputed_tokens_are_charged_to_nobody,
    ),
    Fault(
        "a client that was away is owed its absence",
        Fair.on_add,
        "max(self._counters.get(client, 0.0), floor)",
        "self._counters.get(client, 0.0)",
        policies.test_client_that_was_away_has_saved_up_nothing,
    ),
    Fault(
        "a budget too small for the decodes is accepted",
        SchedulerConfig.__post_init__,
        "self.token_budget < self.max_num_seqs",
        "self.token_budget < 1",
        cases.test_config_refuses,
        ({"token_budget": 3}, r"token_budget: expected at least max_num_seqs \(4\)"),
    ),
]
