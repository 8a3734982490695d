"""The client SDK. Reading order: ``cluster`` (connections to daemons), ``local`` (daemons as child processes),
``loaders`` (what a training loop iterates over), ``sessions`` (one running iterator), ``tables`` (mutable tables)."""
