"""What an inference engine does in its steps: prefill and decode, and what its server waits for."""
