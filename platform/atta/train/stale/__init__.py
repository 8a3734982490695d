"""Stale representations: hidden rows of other trainers that are read although they are some epochs old.

Three questions, each with a file of its own. Which versions may a reader use (``rules``)? Where do rows wait until they
are read (``table``)? What does a system read and publish, and when (``decisions``)?

Epochs count from 1 here, as in the papers. A row's version is the epoch that computed it. Version 0 is the exact pass
before the first epoch. A row that was never published has the version -1.
"""
