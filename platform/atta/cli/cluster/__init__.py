"""Commands that run, watch and stop daemons."""
