"""``atta render``: what other engines need to run a cluster, as text to edit."""
