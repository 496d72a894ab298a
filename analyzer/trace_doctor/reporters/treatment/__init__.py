"""What `treat` found, as text, as Markdown for a pull request, and in single sentences."""
