"""The sandboxes of `bash`: the values of `[sandbox] bash` and of `--sandbox`."""

OFF, WORKSPACE, WORKSPACE_WITHOUT_NETWORK = "off", "workspace", "workspace,no-network"
SANDBOXES = (OFF, WORKSPACE, WORKSPACE_WITHOUT_NETWORK)
