"""What commands show of answers, timelines, clusters and devices, as text for people.

Is given what the program has found, and says it in tables and lines; decides nothing.
"""
