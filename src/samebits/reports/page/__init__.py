"""The page of a model: facts gathered as data, module by module, and the sections made of them."""
