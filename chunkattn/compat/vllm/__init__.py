"""vLLM's attention served by chunkattn: install it beside vLLM and start with ``--attention-backend CUSTOM``.

`plugin` is the entry point that vLLM calls in each of its processes, `backend` what it then asks. One class serves
every device that chunkattn has a backend for; decodes, chunks of prompts and cached prefixes go through one call.
"""
