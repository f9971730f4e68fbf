// Tests of the client against services in the same process; run by `npm test` after a build.
import assert from "node:assert/strict";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { failureOf, RunFailedError, StrataClient, UnreachableError, Untrusted } from "@strata/client";
import { AgentService } from "@strata/client/api/agent_loop/v1/agent_service_pb";
import { Provenance, Role, ToolStatus } from "@strata/client/api/common/v1/message_pb";
import { RunEventSchema, StopReason } from "@strata/client/api/common/v1/run_event_pb";
import { RunService } from "@strata/client/api/gateway/v1/run_service_pb";

const BACK_OFF = { firstMs: 1, longestMs: 1 };
const RUN = "run-1";

/** A client of services that are given by their methods. */
function clientOf({ agents = {}, runs = {} }) {
  const transport = createRouterTransport(({ service }) => {
    service(AgentService, agents);
    service(RunService, runs);
  });
  return new StrataClient(transport, { apiKey: "key" });
}

/** A response with an event. */
function response(sequence, kind, value = {}) {
  const fields = { runId: RUN, sequence: BigInt(sequence), event: { case: kind, value } };
  return { event: create(RunEventSchema, fields) };
}

const finished = (sequence, stopReason = StopReason.END_TURN, error = undefined) =>
  response(sequence, "runFinished", { stopReason, error });

const stored = (sequence, text, role = Role.ASSISTANT) =>
  response(sequence, "messageStored", {
    message: { role, parts: [{ content: { case: "text", value: { text } } }] },
  });

/** A request that waits for a call of a client tool. */
const asked = (sequence, args) =>
  response(sequence, "approvalRequested", {
    approval: {
      approvalId: "approval-1",
      toolCalls: [{ toolCallId: "call-1", name: "look", arguments: args }],
      bindings: [{ toolCallId: "call-1", argumentsHash: "hash", byClient: true }],
    },
  });

const tool = (run) => ({ name: "look", description: "Looks.", parameters: { type: "object" }, run });

async function all(events) {
  const kinds = [];
  for await (const { event } of events) kinds.push(event.case);
  return kinds;
}

test("calls carry the key, and repeatable ones are made again", async () => {
  const keys = [];
  const getAgent = (_, { requestHeader }) => {
    keys.push(requestHeader.get("authorization"));
    if (keys.length < 3) throw new ConnectError("away", Code.Unavailable);
    return { agent: { name: "ann" } };
  };
  const { agent } = await clientOf({ agents: { getAgent } }).agents.getAgent({ name: "ann" });
  assert.equal(agent.name, "ann");
  assert.deepEqual(keys, Array(3).fill("Bearer key"));
});

test("calls that were refused, and those that may not be repeated, are made once", async () => {
  let calls = 0;
  const refuse = (code) => () => {
    calls++;
    throw new ConnectError("no", code);
  };
  const refusing = clientOf({ agents: { getAgent: refuse(Code.NotFound) } });
  await assert.rejects(refusing.agents.getAgent({}), { code: Code.NotFound });
  assert.equal(calls, 1);
  const missing = clientOf({ agents: { importAgent: refuse(Code.Unavailable) } });
  await assert.rejects(missing.agents.importAgent((async function* () {})()));
  assert.equal(calls, 2);
  const creating = clientOf({ agents: { createAgent: refuse(Code.Unavailable) } });
  await assert.rejects(creating.agents.createAgent({ name: "ann" }));
  assert.equal(calls, 3);
  await assert.rejects(creating.agents.createAgent({ name: "ann", requestId: "once" }));
  assert.equal(calls, 6);
});

test("a message is sent again with its id until the run is known, which then is resumed", async () => {
  const ids = new Set();
  const resumed = [];
  let attempts = 0;
  const runs = {
    async *sendMessage({ requestId }) {
      ids.add(requestId);
      if (++attempts === 1) throw new ConnectError("away", Code.Unavailable);
      yield response(1, "runStarted");
      yield response(0, "textDelta", { text: "He" });
      throw new ConnectError("the connection broke", Code.Internal);
    },
    async *streamRun(request) {
      resumed.push(request);
      yield response(1, "runStarted");
      yield response(0, "textSnapshot", { text: "Hello" });
      yield finished(2);
    },
  };
  const events = clientOf({ runs }).send("agent-1", "Hi.", { backOff: BACK_OFF, streamTokens: true });
  assert.deepEqual(await all(events), ["runStarted", "textDelta", "textSnapshot", "runFinished"]);
  assert.equal(attempts, 2);
  assert.equal(ids.size, 1);
  const [{ runId, afterSequence, streamTokens }] = resumed;
  assert.deepEqual([runId, afterSequence, streamTokens], [RUN, 1n, true]);
});

test("a request that cannot be encoded is refused at once, and not sent", async () => {
  let attempts = 0;
  const runs = {
    async *sendMessage() {
      attempts++;
    },
  };
  const backOff = { ...BACK_OFF, patienceMs: 100 };
  for (const maxSteps of [1.5, 1e12]) {
    await assert.rejects(clientOf({ runs }).ask("agent-1", "Hi.", { maxSteps, backOff }), (error) => {
      assert.equal(failureOf(error).code, Code.InvalidArgument);
      assert.match(error.message, /max_steps/);
      return true;
    });
  }
  assert.equal(attempts, 0);
});

test("a key that cannot be sent is refused when the client is made", () => {
  const transport = createRouterTransport(() => {});
  assert.throws(() => new StrataClient(transport, { apiKey: "ключ" }), TypeError);
  assert.throws(() => new StrataClient(transport, { apiKey: "a\nb" }), TypeError);
  // As it is read from a file.
  new StrataClient(transport, { apiKey: "sk-1\n" });
});

test("a run that is resumed after its last event yields nothing", async () => {
  const runs = { async *streamRun() {} };
  const options = { afterSequence: 2n, backOff: { ...BACK_OFF, patienceMs: 30 } };
  assert.deepEqual(await all(clientOf({ runs }).resume(RUN, options)), []);
});

test("without contact the client gives up, and names the run", async () => {
  const runs = {
    async *streamRun() {
      throw new ConnectError("away", Code.Unavailable);
    },
  };
  await assert.rejects(all(clientOf({ runs }).resume(RUN, { backOff: { ...BACK_OFF, patienceMs: 30 } })), (error) => {
    assert(error instanceof UnreachableError);
    assert.equal(error.runId, RUN);
    assert.equal(failureOf(error.cause).code, Code.Unavailable);
    return true;
  });
});

test("a signal ends the iteration while the client waits", async () => {
  const runs = {
    async *streamRun() {
      throw new ConnectError("away", Code.Unavailable);
    },
  };
  const backOff = { firstMs: 60_000, longestMs: 60_000 };
  const left = new AbortController();
  const events = all(clientOf({ runs }).resume(RUN, { backOff, signal: left.signal }));
  setImmediate(() => left.abort(new Error("left")));
  await assert.rejects(events, { message: "left" });
});

test("ask returns the texts of the agent, without those of others", async () => {
  const runs = {
    async *sendMessage() {
      yield stored(1, "Hi.", Role.USER);
      yield stored(2, "First.");
      yield stored(3, "");
      yield stored(4, "Second.");
      yield finished(5);
    },
  };
  assert.equal(await clientOf({ runs }).ask("agent-1", "Hi."), "First.\n\nSecond.");
});

for (const [end, reason] of [
  [finished(1, StopReason.ERROR, { reason: "INTERNAL", message: "It broke." }), "INTERNAL"],
  [finished(1, StopReason.CANCELLED), "CANCELLED"],
  [finished(1, StopReason.REQUIRES_APPROVAL), "REQUIRES_APPROVAL"],
]) {
  test(`ask fails if the run ends with ${reason}`, async () => {
    const runs = {
      async *sendMessage() {
        yield end;
      },
    };
    await assert.rejects(clientOf({ runs }).ask("agent-1", "Hi."), (error) => {
      assert(error instanceof RunFailedError);
      assert.deepEqual([error.runId, error.reason], [RUN, reason]);
      return true;
    });
  });
}

for (const [name, run, decision] of [
  ["text", ({ at }) => `At ${at}.`, { clientReturn: "At a." }],
  ["JSON", () => ({ seen: [1] }), { clientReturn: '{"seen":[1]}' }],
  ["nothing", () => undefined, { clientReturn: "null" }],
  ["invalid text", () => "a\0b\ud800", { clientReturn: "ab?" }],
  ["untrusted", () => new Untrusted("x"), { clientReturn: "x", clientTaint: [Provenance.WEB] }],
  [
    "an error",
    () => {
      throw new RangeError("Too far.");
    },
    { clientReturn: "RangeError: Too far.", clientStatus: ToolStatus.FAILED },
  ],
]) {
  test(`a client tool returns ${name}`, async () => {
    let answered;
    const runs = {
      async *sendMessage() {
        yield asked(1, '{"at": "a"}');
        yield finished(2, StopReason.REQUIRES_APPROVAL);
      },
      async *respondToApproval(request) {
        answered = request;
        yield { event: create(RunEventSchema, { ...finished(1).event, runId: "run-2" }) };
      },
    };
    const options = { tools: [tool(run)], maxSteps: 7 };
    const events = await all(clientOf({ runs }).send("agent-1", "Look.", options));
    assert.deepEqual(events, ["approvalRequested", "runFinished", "runFinished"]);
    assert.deepEqual([answered.approvalId, answered.maxSteps], ["approval-1", 7]);
    const [{ $typeName: _, ...made }] = answered.decisions;
    assert.deepEqual(made, {
      ...{ toolCallId: "call-1", approve: false, reason: "", argumentsHash: "hash" },
      ...{ clientStatus: ToolStatus.UNSPECIFIED, clientTaint: [], ...decision },
    });
  });
}

test("a long return is cut at the limit", async () => {
  let answered;
  const runs = {
    async *sendMessage() {
      yield asked(1, "");
    },
    async *streamRun() {
      yield finished(2, StopReason.REQUIRES_APPROVAL);
    },
    async *respondToApproval(request) {
      answered = request;
      yield { event: create(RunEventSchema, { ...finished(1).event, runId: "run-2" }) };
    },
  };
  const options = { tools: [tool(() => "x".repeat(300_000))], backOff: BACK_OFF };
  await all(clientOf({ runs }).send("agent-1", "Look.", options));
  assert.equal(answered.decisions[0].clientReturn.length, 200_000);
  assert(answered.decisions[0].clientReturn.endsWith("x... [cut at 200000 characters]"));
});

test("requests that wait for others are left to the caller", async () => {
  const runs = {
    async *sendMessage() {
      yield asked(1, "{}");
      yield finished(2, StopReason.REQUIRES_APPROVAL);
    },
  };
  const other = { ...tool(() => ""), name: "other" };
  const events = clientOf({ runs }).send("agent-1", "Look.", { tools: [other] });
  assert.deepEqual(await all(events), ["approvalRequested", "runFinished"]);
  await assert.rejects(all(clientOf({ runs }).send("a", "b", { tools: [other, other] })), TypeError);
});
