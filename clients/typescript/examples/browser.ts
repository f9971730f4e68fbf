import { connect, failureOf } from "@strata/client/web";

// The address of the page: https://app.example/#baseUrl=…&apiKey=…&agentId=…&text=…
const values = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const { baseUrl = "", apiKey = "", agentId = "", text = "" } = values;

const client = connect({ baseUrl, apiKey });
const output = document.querySelector("output")!;
try {
  const { agent } = await client.agents.getAgent({ agentId });
  output.textContent = `${agent!.name}: `;
  for await (const { event } of client.send(agentId, text)) {
    if (event.case === "textDelta") output.append(event.value.text);
  }
} catch (error) {
  output.textContent = failureOf(error).message;
}
output.dataset.state = "done";
