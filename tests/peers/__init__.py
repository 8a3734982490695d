"""Test files of peers, run over Atta: `make peers FOLDER=...`."""
