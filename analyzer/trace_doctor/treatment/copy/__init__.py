"""The copy of a project: what is copied, linked and left out, and how it is taken away again."""
