"""The neural processor: instruction set, assembler, simulator, compiler, concordant software."""
