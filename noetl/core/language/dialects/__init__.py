"""One front end per authoring surface."""
