"""What is simulated: each module has a cluster, clients, faults and invariants. A seed decides the rest."""
