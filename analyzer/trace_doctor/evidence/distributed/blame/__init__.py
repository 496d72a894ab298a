"""Which rank, host, link or stage costs a job of several process groups how much of its step."""
