"""Maps stages and their replicas onto devices whose links differ."""
