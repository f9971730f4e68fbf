import { connect, failureOf, textOf } from "@strata/client/node";

const client = connect(); // STRATA_ADDRESS and STRATA_API_KEY

const blocks = [
  { label: "human", value: "Her name is Ann. She lives in Lisbon." },
  { label: "persona", value: "A travel agent who answers in one sentence." },
];
const { agent } = await client.agents.createAgent({ blocks });
const agentId = agent!.id;

const reply = await client.ask(agentId, "Where do I live?");
console.log("reply:", reply);

for await (const { event } of client.send(agentId, "What did I say about trains?")) {
  if (event.case === "toolStarted") console.log("call:", event.value.name, event.value.arguments);
  if (event.case === "textDelta") process.stdout.write(event.value.text);
}
console.log();

const readClipboard = {
  name: "read_clipboard",
  description: "Reads the clipboard of the user.",
  parameters: { type: "object", properties: { format: { type: "string" } } },
  run: ({ format = "text" }: { format?: string }) => ({ [format]: "Lisbon to Porto, 9:30" }),
};
await client.upsertClientTool(readClipboard);
const helper = await client.agents.createAgent({ tools: [readClipboard.name] });
const answer = await client.ask(helper.agent!.id, "What have I copied?", {
  tools: [readClipboard],
});
console.log("answer:", answer);

let runId = "";
let afterSequence = 0n;
for await (const event of client.send(agentId, "Plan a week in Porto.")) {
  runId = event.runId;
  if (event.sequence) afterSequence = event.sequence;
  if (event.event.case === "textDelta") break; // the run continues
}
console.log("left");

for await (const { event } of client.resume(runId, { afterSequence })) {
  if (event.case === "messageStored") console.log("plan:", textOf(event.value.message));
}

try {
  await client.agents.getAgent({ name: "nobody" });
} catch (error) {
  const { reason, message } = failureOf(error);
  console.log("refused:", reason, message);
}
