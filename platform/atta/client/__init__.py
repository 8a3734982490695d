"""The client SDK: ``cluster`` (connections), ``local`` (daemons as child processes), ``stream`` (one running iterator)."""
