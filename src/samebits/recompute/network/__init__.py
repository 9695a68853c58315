"""A forward pass as data: its sub-layers in the order in which they run, and facts about them."""
