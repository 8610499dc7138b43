"""GEM environments: one sandbox each, driven through a session in it. What lives, lives in the sandbox."""
