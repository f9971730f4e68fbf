// A client of another make for `strata mcp serve`: writes into a memory, reads it, and tells what
// it saw in one line of JSON. Arguments: "stdio" and a command, or "http", an address and a token.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [kind, first, ...rest] = process.argv.slice(2);
const transport =
  kind === "stdio"
    ? new StdioClientTransport({ command: first, args: rest, env: process.env })
    : new StreamableHTTPClientTransport(new URL(first), {
        requestInit: { headers: { Authorization: `Bearer ${rest[0]}` } },
      });
const client = new Client({ name: "node", version: "1.0" });
await client.connect(transport);
const { tools } = await client.listTools();
const call = (name, given) => client.callTool({ name, arguments: given });
const written = await call("core_memory_append", { label: "human", content: "Likes coffee." });
const read = await call("read_memory_block", { label: "human" });
const wrong = await call("read_memory_block", { label: "nowhere" });
const { resources } = await client.listResources();
console.log(
  JSON.stringify({
    server: client.getServerVersion(),
    tools: tools.map((each) => each.name),
    written,
    read,
    wrong,
    resources: resources.map((each) => each.uri),
  }),
);
await client.close();
