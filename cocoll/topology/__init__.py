"""What the machine is: facts that are gathered, and later the graph and the costs of its links."""
