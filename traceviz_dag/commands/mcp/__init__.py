"""``traceviz mcp``: the answers of one home or folder for programs that speak the Model Context Protocol."""
