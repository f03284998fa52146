"""The commands of ``cocoll``, one a module: each adds its words to the parser and runs them."""
