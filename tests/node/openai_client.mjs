// OpenAI's SDK for Node, in front of the HTTP port: a model is an agent. Tells what it saw in one
// line of JSON. STRATA_URL and STRATA_API_KEY say where; the argument is the agent.
import OpenAI from "openai";

const { STRATA_URL, STRATA_API_KEY } = process.env;
const [model] = process.argv.slice(2);
const client = new OpenAI({
  baseURL: `${STRATA_URL}/v1`,
  apiKey: STRATA_API_KEY,
  maxRetries: 0,
});
const messages = [{ role: "user", content: "Hi." }];

const models = [];
for await (const each of client.models.list()) models.push(each.id);

const chat = await client.chat.completions.create({ model, messages });

let chatText = "";
let usage = null;
const chunks = await client.chat.completions.create({
  model,
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of chunks) {
  chatText += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}

const response = await client.responses.create({ model, input: "Hi." });
const stream = client.responses.stream({
  model,
  input: "And?",
  previous_response_id: response.id,
});
const events = [];
for await (const event of stream) events.push(event.type);
const final = await stream.finalResponse();
const stored = await client.responses.retrieve(final.id);

const refused = await client.responses
  .create({ model: "nobody", input: "Hi." })
  .then(String, ({ status, code, param }) => ({ status, code, param }));

console.log(
  JSON.stringify({
    models,
    chat: chat.choices[0],
    streamedChat: { text: chatText, tokens: usage?.total_tokens },
    response: { text: response.output_text, status: response.status },
    streamedResponse: { text: final.output_text, events },
    stored: { text: stored.output_text, id: stored.id === final.id },
    conversations: [response.conversation.id, final.conversation.id],
    refused,
  }),
);
