"""Who may talk to this daemon: certificates, tokens and roles, checked before a request is parsed."""
