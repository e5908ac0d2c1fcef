"""Models as chains of layers: which ops repeat, and how a team of devices can divide each."""
