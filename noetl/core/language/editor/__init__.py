"""Services for editors and pages: completion, hover, run form, graph, plan."""
