"""Write the generated pages into docs/reference."""

from pathlib import Path

from docs.generate.pages import write_pages

write_pages(Path(__file__).parents[1] / "reference")
