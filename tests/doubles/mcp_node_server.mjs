// An MCP server of another make: Node, without packages.
import { createInterface } from "node:readline";

const tools = [
  {
    name: "reverse.text",
    description: "Turns a text around.",
    inputSchema: {
      $schema: "http://json-schema.org/draft-07/schema#",
      type: "object",
      properties: { text: { type: "string", pattern: "^.*$" } },
      required: ["text"],
    },
  },
];

const answers = {
  initialize: (params) => ({
    protocolVersion: params.protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: "node", version: process.version },
  }),
  ping: () => ({}),
  "tools/list": () => ({ tools }),
  "tools/call": ({ arguments: given }) => ({
    content: [{ type: "text", text: [...given.text].reverse().join("") }],
  }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) continue;
  const result = answers[method]?.(params);
  const error = { code: -32601, message: `no ${method}` };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...(result ? { result } : { error }) }));
}
