"""``atta dashboard``: one page that shows a cluster, its sessions, and the curves of training."""
