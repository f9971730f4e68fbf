import { create } from "@bufbuild/protobuf";

import {
  type ApprovalDecision,
  ApprovalDecisionSchema,
  type ApprovalRequestPart,
  Provenance,
  type ToolCallPart,
  ToolStatus,
} from "./strata/api/common/v1/message_pb.js";

/** A function of this program that agents call. */
export interface ClientTool {
  /** Name of the tool, at most 48 characters. */
  name: string;
  /** Description for the model. */
  description: string;
  /** JSON schema of the arguments, an object. */
  parameters: Record<string, unknown>;
  /**
   * Makes a call. Text is returned to the model unchanged, other values as JSON. If it throws, the
   * model gets the name and the message of the error.
   *
   * @param args The arguments of the model, which are not validated.
   */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- the schema is data
  run(args: any): unknown;
}

/** A return with untrusted content, which taints the turn. */
export class Untrusted {
  /**
   * @param value The return.
   * @param label The source of the content.
   */
  constructor(
    readonly value: unknown,
    readonly label: "web" | "mcp" = "web",
  ) {}
}

/** The gateway's limit for one return. */
const MAX_CHARS = 200_000;
const LABELS = { web: Provenance.WEB, mcp: Provenance.MCP };

/** Client tools by name. */
export class ClientTools {
  private readonly tools = new Map<string, ClientTool>();

  /** @throws TypeError Two tools have the same name. */
  constructor(tools: Iterable<ClientTool>) {
    for (const tool of tools) {
      if (this.tools.has(tool.name)) throw new TypeError(`Two tools have the name ${tool.name}.`);
      this.tools.set(tool.name, tool);
    }
  }

  /** Whether a request consists only of calls of these tools. */
  covers(request: ApprovalRequestPart): boolean {
    return this.own(request).length === request.toolCalls.length;
  }

  /**
   * Makes the calls of these tools, in the order of the request, and returns the decisions. Other
   * calls in the request are left out, although an answer needs a decision about each.
   */
  async decide(request: ApprovalRequestPart): Promise<ApprovalDecision[]> {
    const decisions = [];
    for (const [call, tool] of this.own(request)) {
      const binding = request.bindings.find((bound) => bound.toolCallId === call.toolCallId);
      decisions.push(
        create(ApprovalDecisionSchema, {
          toolCallId: call.toolCallId,
          argumentsHash: binding?.argumentsHash ?? "",
          ...(await makeCall(tool, call)),
        }),
      );
    }
    return decisions;
  }

  private own(request: ApprovalRequestPart): [ToolCallPart, ClientTool][] {
    const byClient = new Set(
      request.bindings.filter((bound) => bound.byClient).map((bound) => bound.toolCallId),
    );
    return request.toolCalls.flatMap((call) => {
      const tool = byClient.has(call.toolCallId) ? this.tools.get(call.name) : undefined;
      return tool ? [[call, tool] satisfies [ToolCallPart, ClientTool]] : [];
    });
  }
}

async function makeCall(
  tool: ClientTool,
  call: ToolCallPart,
): Promise<Pick<ApprovalDecision, "clientReturn" | "clientStatus" | "clientTaint">> {
  try {
    const returned = await tool.run(JSON.parse(call.arguments || "{}"));
    const [value, taint] =
      returned instanceof Untrusted ? [returned.value, [LABELS[returned.label]]] : [returned, []];
    return {
      clientReturn: sendable(typeof value === "string" ? value : (JSON.stringify(value) ?? "null")),
      clientStatus: ToolStatus.UNSPECIFIED,
      clientTaint: taint,
    };
  } catch (error) {
    return { clientReturn: sendable(String(error)), clientStatus: ToolStatus.FAILED, clientTaint: [] };
  }
}

/** Returns text that is valid in a message: without NUL and lone surrogates, and truncated. */
function sendable(text: string): string {
  const valid = text.replaceAll("\0", "").replace(/\p{Surrogate}/gu, "?");
  const characters = [...valid];
  if (characters.length <= MAX_CHARS) return valid;
  const note = `... [cut at ${MAX_CHARS} characters]`;
  return characters.slice(0, MAX_CHARS - note.length).join("") + note;
}
