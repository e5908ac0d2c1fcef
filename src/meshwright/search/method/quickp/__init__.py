"""QuickP as published (Wang et al., ICC 2025): coarsen the step, then solve an integer programme.

Decides the device of each coarse op. It is given an Instance and a scope, and returns a placement.
"""
