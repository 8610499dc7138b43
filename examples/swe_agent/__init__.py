"""A small agent that solves SWE tasks in sandboxes; the model is a function that you bring."""
