"""The builders, one module a family; `meshwright.cluster.build` gathers them."""
