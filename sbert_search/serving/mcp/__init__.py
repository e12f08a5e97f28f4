"""Search as tools of the Model Context Protocol, over HTTP or over stdin and stdout.

The extra ``mcp`` installs the protocol's SDK, which only `protocol`, `http` and `stdio` import.
"""
