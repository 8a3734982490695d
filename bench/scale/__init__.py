"""``atta bench scale``: what a seed costs as the number of partitions grows.

=========  ============================================================================================================
benchmark  settings, rounds and the order in which systems take turns
graphs     the graph and its partitionings, made once and kept
cell       one system at one number of partitions: daemons and consumers, and what is asked of them
consumer   a consumer, as a script that the Python of another checkout can run
clocks     processor time of processes and of their threads, from /proc
profile    where in the code that time is spent, from ``perf``
figures    what one measured stretch says, without clocks and processes
report     increase over the numbers of partitions, tables and pictures
=========  ============================================================================================================
"""
