"""Other libraries' interfaces to attention, served by chunkattn's operators.

`flash_attn` and `flash_attn_interface` speak FlashAttention 2 and 3, `flashinfer` FlashInfer, `transformers` Hugging
Face's attention interface, `vllm` vLLM's attention backend. Each module needs only what it names: the first two none of
the packages they imitate. An argument of a foreign signature is honoured, or refused by name where it would change the
result and can't be; hints that change no result are accepted.
"""
