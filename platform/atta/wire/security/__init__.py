"""Who may call what: roles, tokens, and the files that let two processes trust each other."""
