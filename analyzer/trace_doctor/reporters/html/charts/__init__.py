"""Charts as static SVG: readable without scripts, on paper and by a screen reader."""
