"""A context: the process that runs user code. Nothing in it is trusted once the first cell has run."""
