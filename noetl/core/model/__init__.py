"""The nouns, as frozen data: what every room of the house speaks of."""
