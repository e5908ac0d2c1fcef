"""The search methods, a module or a folder each; `name` lists them for people.

A method is given the `Problem` and the `Incumbent`, decides what runs where, and offers plans that
`judge` has simulated, with a bound that it has proven.
"""
