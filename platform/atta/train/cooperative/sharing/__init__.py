"""From a server's subgraph to a share for each of its trainers: ``subgraphs`` extracts it, ``split`` says which trainer
computes which vertex, ``shares`` divides it, ``handover`` sends the shares.
"""
