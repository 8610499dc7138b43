"""The client library: one module per thing it talks to."""
