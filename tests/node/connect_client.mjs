// Clients of Connect and gRPC-Web, in front of the HTTP port, with messages by descriptors alone.
// Tells what it saw in one line of JSON. STRATA_URL and STRATA_API_KEY say where; the arguments are
// a transport, a file with a FileDescriptorSet, and the id of an agent.
import { readFile } from "node:fs/promises";
import { createFileRegistry, fromBinary, toJson } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import * as node from "@connectrpc/connect-node";
import * as web from "@connectrpc/connect-web";

const { STRATA_URL: baseUrl, STRATA_API_KEY } = process.env;
const [kind, descriptors, agentId] = process.argv.slice(2);

const authorize = (next) => (request) => {
  request.header.set("authorization", `Bearer ${STRATA_API_KEY}`);
  return next(request);
};
const shared = { baseUrl, interceptors: [authorize] };
const onNode = { ...shared, httpVersion: "1.1" };
const transports = {
  "connect-json": () => node.createConnectTransport({ ...onNode, useBinaryFormat: false }),
  "connect-binary": () => node.createConnectTransport({ ...onNode, useBinaryFormat: true }),
  "connect-get": () => node.createConnectTransport({ ...onNode, useHttpGet: true }),
  "grpc-web": () => node.createGrpcWebTransport(onNode),
  "fetch-connect": () => web.createConnectTransport(shared),
  "fetch-grpc-web": () => web.createGrpcWebTransport(shared),
};
const transport = transports[kind]();

const registry = createFileRegistry(
  fromBinary(FileDescriptorSetSchema, await readFile(descriptors)),
);
const client = (name) => createClient(registry.getService(name), transport);
const agents = client("strata.api.agent_loop.v1.AgentService");
const runs = client("strata.api.gateway.v1.RunService");

const { agent } = await agents.getAgent({ agentId });

const kinds = [];
let text = "";
const sent = runs.sendMessage({
  agentId,
  messages: [{ role: 2, parts: [{ content: { case: "text", value: { text: "Hi." } } }] }],
});
for await (const { event } of sent) {
  kinds.push(event.event.case);
  if (event.event.case === "textDelta") text += event.event.value.text;
}

const failureOf = (error) => {
  const { code, rawMessage } = ConnectError.from(error);
  const details = ConnectError.from(error)
    .findDetails(registry)
    .map((each) => ({
      type: each.$typeName,
      value: toJson(registry.getMessage(each.$typeName), each),
    }));
  return { code: Code[code], message: rawMessage, details };
};
const missing = "agent-00000000-0000-7000-8000-000000000000";
const refused = await agents.getAgent({ agentId: missing }).then(String, failureOf);

let refusedStream = null;
try {
  for await (const _ of runs.sendMessage({ agentId })) refusedStream = "it was accepted";
} catch (error) {
  refusedStream = failureOf(error);
}

console.log(
  JSON.stringify({ agent: { id: agent.id, name: agent.name }, kinds, text, refused, refusedStream }),
);
