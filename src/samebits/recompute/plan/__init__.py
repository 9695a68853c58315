"""Plans: a step as storages and nodes, what they cost, and which to keep.

Data flow: `facts`, read from a captured graph (`capture`) or from a pass of sub-layers
(`schedule`); the memory of a choice of kept storages (`simulation`); which to keep, by the local
rule (`rule`) or within a budget (`storages`, bounded by `relaxation`); all with its figures
(`planner`), as a file (`plan`)."""
