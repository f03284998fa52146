"""How several hosts are measured: turns over TCP, MPI in the ranks, Gloo in their children."""
