"""A server of the Model Context Protocol: the diagnosis in small typed answers, for agents. It needs the extra `mcp`."""
