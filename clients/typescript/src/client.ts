import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

import { type ClientTool, ClientTools } from "./client_tools.js";
import { RunFailedError } from "./errors.js";
import { type FollowedRequest, type FollowOptions, RunFollower } from "./run_follower.js";
import { Services } from "./services.js";
import type { ApprovalRequestPart, Message } from "./strata/api/common/v1/message_pb.js";
import { Role } from "./strata/api/common/v1/message_pb.js";
import { type RunEvent, type RunFinished, StopReason } from "./strata/api/common/v1/run_event_pb.js";
import { ToolType } from "./strata/api/common/v1/tool_pb.js";
import type {
  SendMessageRequestSchema,
  StreamRunRequestSchema,
} from "./strata/api/gateway/v1/run_service_pb.js";
import type { Tool } from "./strata/api/tool_execution/v1/tool_service_pb.js";
import { type ConnectionOptions, gatewayTransport } from "./transport.js";

/** Maximum number of approval requests that are answered for one message. */
const MAX_ANSWERS = 100;

/** Options for sending a message, fields of `SendMessageRequest`, and for following its run. */
export interface SendOptions
  extends FollowOptions,
    Omit<MessageInitShape<typeof SendMessageRequestSchema>, "$typeName" | "agentId" | "messages"> {
  /** Functions for client tools. The agent needs client tools of these names. */
  tools?: Iterable<ClientTool> | undefined;
}

/** Options of `resume`. */
export interface ResumeOptions
  extends FollowOptions,
    Omit<MessageInitShape<typeof StreamRunRequestSchema>, "$typeName" | "runId"> {}

/** Client of one gateway: every RPC, and helpers on top of them. */
export class StrataClient extends Services {
  /**
   * @param transport Makes the calls.
   * @param options The API key, and the timeout of calls.
   */
  constructor(transport: Transport, options: ConnectionOptions) {
    super(gatewayTransport(transport, options));
  }

  /**
   * Sends a message, and yields each event of its run once, up to the end.
   *
   * Calls of client tools are answered with `tools`, and the events of the continuing run follow,
   * so only the last `runFinished` is final. The iteration ends at a run that waits for anything
   * else.
   *
   * A broken connection is resumed after the last event; the message takes effect once. Leaving
   * the iteration does not stop the run.
   *
   * @throws UnreachableError The gateway could not be reached for too long.
   * @throws ConnectError The gateway refused; see `failureOf`.
   */
  async *send(
    agentId: string,
    text: string,
    options: SendOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    const { tools = [], backOff, signal, ...fields } = options;
    const clientTools = new ClientTools(tools);
    const requestId = fields.requestId || newRequestId();
    const parts = [{ content: { case: "text" as const, value: { text } } }];
    const message = { role: Role.USER, parts };
    let request: FollowedRequest = {
      send: { ...fields, requestId, agentId, messages: [message] },
    };
    for (let answers = 0; answers < MAX_ANSWERS; answers++) {
      let asked: ApprovalRequestPart | undefined;
      for await (const event of new RunFollower(this.runs, request, { backOff, signal }).events()) {
        if (event.event.case === "approvalRequested") asked = event.event.value.approval;
        yield event;
      }
      if (asked === undefined || !clientTools.covers(asked)) return;
      request = {
        respond: {
          requestId: newRequestId(),
          approvalId: asked.approvalId,
          decisions: await clientTools.decide(asked),
          maxSteps: fields.maxSteps,
          sendMessageAsText: fields.sendMessageAsText,
        },
      };
    }
  }

  /**
   * Sends a message, and returns the reply: the texts of the agent, joined by empty lines.
   *
   * @throws RunFailedError The run failed, was cancelled, or waits for an approval.
   * @throws UnreachableError The gateway could not be reached for too long.
   * @throws ConnectError The gateway refused; see `failureOf`.
   */
  async ask(agentId: string, text: string, options: SendOptions = {}): Promise<string> {
    const texts: string[] = [];
    let end: { runId: string; finished: RunFinished } | undefined;
    for await (const { event, runId } of this.send(agentId, text, { streamTokens: false, ...options })) {
      if (event.case === "messageStored" && event.value.message?.role === Role.ASSISTANT) {
        texts.push(textOf(event.value.message));
      }
      if (event.case === "runFinished") end = { runId, finished: event.value };
    }
    if (end !== undefined && isWithoutReply(end.finished)) {
      throw new RunFailedError(end.runId, end.finished);
    }
    return texts.filter(Boolean).join("\n\n");
  }

  /**
   * Yields the events of a run after a sequence number, up to its end, across lost connections.
   * The program must have kept the `runId` and the `sequence` of the last event that it received.
   *
   * @throws UnreachableError The gateway could not be reached for too long.
   * @throws ConnectError The gateway refused; see `failureOf`.
   */
  async *resume(
    runId: string,
    options: ResumeOptions = {},
  ): AsyncGenerator<RunEvent, void, undefined> {
    const { backOff, signal, ...fields } = options;
    const request = { resume: { ...fields, runId } };
    yield* new RunFollower(this.runs, request, { backOff, signal }).events();
  }

  /** Registers a function of this program as a client tool; agents use it by its name. */
  async upsertClientTool(tool: ClientTool): Promise<Tool> {
    const { tool: stored } = await this.tools.upsertTool({
      requestId: newRequestId(),
      type: ToolType.CLIENT,
      name: tool.name,
      description: tool.description,
      parametersJson: JSON.stringify(tool.parameters),
    });
    return stored!;
  }
}

/** Returns a new idempotency key, so that a repeated call takes effect once. */
export function newRequestId(): string {
  // `crypto.randomUUID` is missing in pages that were not loaded over https.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `ts-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Returns the text of a message, without reasoning and calls. */
export function textOf(message: Message | undefined): string {
  return (message?.parts ?? [])
    .map(({ content }) => (content.case === "text" ? content.value.text : ""))
    .join("");
}

function isWithoutReply(finished: RunFinished): boolean {
  return (
    finished.error !== undefined ||
    finished.stopReason === StopReason.CANCELLED ||
    finished.stopReason === StopReason.REQUIRES_APPROVAL
  );
}
