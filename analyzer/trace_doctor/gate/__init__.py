"""The gate: may this be merged, and did the fix help? Exit codes as in docs/exit-codes.md; 2 (nothing readable) is decided before."""
