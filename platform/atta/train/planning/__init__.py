"""Which training strategy suits the user's machines: sizes are counted, speeds measured, seconds predicted, the choice
explained.

Reading order: ``sizes`` (what is counted, and how fast machines are), ``forecast`` (seconds and memory from these two),
``explain`` (all strategies ranked, and the choice), ``count`` (sizes of a dataset), ``probe`` and ``loopback`` (rates of
this machine).
"""
