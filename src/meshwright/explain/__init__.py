"""Says why a plan takes as long as it does, what each of its decisions is worth and what binds it.

Is given a request and the plan that answers it, and returns an Explanation. Decides no plan."""
