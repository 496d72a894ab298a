"""The built-in rules: one rule a file, found by walking this package."""
