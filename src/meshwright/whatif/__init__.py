"""What a step would take on other devices, on another network or with another batch.

Given a request, its plan and questions, returns for each the step of the same plan and of a plan
that is searched anew. What a change is, `meshwright.change` says.
"""
