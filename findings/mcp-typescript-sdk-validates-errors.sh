#!/usr/bin/env bash
# @modelcontextprotocol/sdk 1.32.2 (npm): if a tool has an output schema, the client validates
# structuredContent also in results with isError: true, and throws instead of returning the result.
# So the text of a refused call never reaches the caller of callTool(). A result with isError: true
# and without structuredContent is returned. The Python client mcp 2.3.0 returns both.
#
# Seen: with structuredContent: McpError -32602
#       without: isError true, "Unknown column"
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2
cat > run.mjs <<'JS'
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { CallToolRequestSchema, ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const server = new Server({ name: "s", version: "1" }, { capabilities: { tools: {} } });
const outputSchema = { type: "object", properties: { hits: { type: "array" } }, required: ["hits"] };
server.setRequestHandler(ListToolsRequestSchema, () => ({
  tools: [{ name: "search", inputSchema: { type: "object" }, outputSchema }],
}));
server.setRequestHandler(CallToolRequestSchema, ({ params }) => ({
  content: [{ type: "text", text: "Unknown column" }],
  isError: true,
  ...(params.arguments.structured ? { structuredContent: { error: "Unknown column" } } : {}),
}));
const [one, two] = InMemoryTransport.createLinkedPair();
const client = new Client({ name: "c", version: "1" });
await Promise.all([server.connect(one), client.connect(two)]);
await client.listTools();
const call = (structured) => client.callTool({ name: "search", arguments: { structured } });
let code = "none";
try {
  await call(true);
} catch (error) {
  code = error.code;
}
const plain = await call(false);
console.log(`with structuredContent: McpError ${code}`);
console.log(`without: isError ${plain.isError}, "${plain.content[0].text}"`);
process.exit(code === -32602 && plain.isError ? 0 : 1);
JS
node run.mjs
