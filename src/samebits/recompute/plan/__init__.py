"""Plans: what things cost, which values to drop, and the schedule of a step."""
