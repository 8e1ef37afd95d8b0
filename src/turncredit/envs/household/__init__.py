"""Household games: the engine of the ALFWorld text domain, a seeded generator, experts."""
