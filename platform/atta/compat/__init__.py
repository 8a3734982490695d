"""Interfaces of other systems on Atta's daemons, for scripts that were written for those."""
