"""Draws plans as one HTML file that needs nothing beside it, and as figures for papers.

Is given answers with their graphs and clusters, and returns text. Decides no plan and no time."""
