"""Sandboxes: `client.Sandbox`, `group.SandboxGroup`, `sync.Sandbox`, `config.SandboxConfig`."""
