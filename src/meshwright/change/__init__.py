"""Changes of what was asked: of the devices, the network or the batch.

Given a request and changes (or the words for them), returns the changed request. Plans nothing.
"""
