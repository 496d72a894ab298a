"""Which value of a fix is best: compared in rounds, judged on runs of its own."""
