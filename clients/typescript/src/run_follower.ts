import { create, type DescMessage, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { type CallOptions, type Client, Code, ConnectError } from "@connectrpc/connect";

import { failureOf, mayBeRepeated, UnreachableError } from "./errors.js";
import { abortableSleep, type BackOff, DEFAULT_BACK_OFF, growingPauses } from "./pauses.js";
import type { RunEvent } from "./strata/api/common/v1/run_event_pb.js";
import {
  RespondToApprovalRequestSchema,
  type RunService,
  SendMessageRequestSchema,
  StreamRunRequestSchema,
} from "./strata/api/gateway/v1/run_service_pb.js";

/** A request that starts a run, or that names a run that has started. */
export type FollowedRequest =
  | { send: MessageInitShape<typeof SendMessageRequestSchema> }
  | { respond: MessageInitShape<typeof RespondToApprovalRequestSchema> }
  | { resume: MessageInitShape<typeof StreamRunRequestSchema> };

/** Options for following a run. */
export interface FollowOptions {
  /** Pauses between attempts to reconnect. */
  backOff?: Partial<BackOff> | undefined;
  /** Ends the iteration with its reason; the run continues. */
  signal?: AbortSignal | undefined;
}

const RUN_ID_HEADER = "x-run-id";

type EventCase = RunEvent["event"]["case"];
/** Events that are not stored, so they have no position in the log of the run. */
const UNSTORED_EVENTS = new Set<EventCase>([
  "textDelta",
  "reasoningDelta",
  "toolCallDelta",
  "textSnapshot",
]);

/** Follows one run to its end, across lost connections. */
export class RunFollower {
  /** Id of the run; empty until it is known. */
  runId: string;
  /** Sequence of the last stored event that arrived. */
  sequence: bigint;
  private hasAllEvents = false;

  /**
   * @param runs Client of the run service.
   * @param request The request; one that starts a run needs a `requestId`, so that a repeated
   *   request does not start a second one.
   * @param options Options for following the run.
   * @throws ConnectError A field has a value that its type does not allow, such as a fraction.
   */
  constructor(
    private readonly runs: Client<typeof RunService>,
    private readonly request: FollowedRequest,
    private readonly options: FollowOptions = {},
  ) {
    checkRequest(request);
    const resumed = "resume" in request ? request.resume : {};
    this.runId = resumed.runId ?? "";
    this.sequence = resumed.afterSequence ?? 0n;
  }

  /**
   * Yields each event of the run once, up to its end.
   *
   * @throws UnreachableError The gateway could not be reached for too long.
   * @throws ConnectError The gateway refused.
   */
  async *events(): AsyncGenerator<RunEvent, void, undefined> {
    const { signal } = this.options;
    const backOff = { ...DEFAULT_BACK_OFF, ...this.options.backOff };
    const pauses = growingPauses(backOff);
    let lostAt: number | undefined;
    for (;;) {
      const beganAt = Date.now();
      let failed: unknown = new Error("The stream ended before the run ended.");
      try {
        for await (const event of this.attempt()) {
          lostAt = undefined;
          pauses.reset();
          yield event;
          if (event.event.case === "runFinished") return;
        }
        if (this.hasAllEvents) return;
      } catch (error) {
        signal?.throwIfAborted();
        if (!mayBeRepeated(failureOf(error))) throw error;
        failed = error;
      }
      if (lostAt === undefined || Date.now() - beganAt > backOff.contactMs) lostAt = Date.now();
      if (Date.now() - lostAt > backOff.patienceMs) throw new UnreachableError(this.runId, failed);
      const retryAfterMs = failureOf(failed).retryAfterMs ?? 0;
      await abortableSleep(Math.max(pauses.next(), retryAfterMs), signal);
    }
  }

  /** Yields the new events of one connection. */
  private async *attempt(): AsyncGenerator<RunEvent, void, undefined> {
    const left = new AbortController();
    const { signal } = this.options;
    try {
      const responses = this.open({
        signal: signal ? AbortSignal.any([signal, left.signal]) : left.signal,
        onHeader: (headers) => this.setRunId(headers.get(RUN_ID_HEADER) ?? ""),
      });
      const isResumed = this.runId !== "";
      let isEmpty = true;
      for await (const { event } of responses) {
        isEmpty = false;
        if (event !== undefined && this.isNew(event)) yield event;
      }
      // The gateway ends a stream without an event if the run ended before the sequence.
      this.hasAllEvents = isResumed && isEmpty;
    } finally {
      left.abort();
    }
  }

  private open(options: CallOptions): AsyncIterable<{ event?: RunEvent | undefined }> {
    const { request } = this;
    if (this.runId) {
      return this.runs.streamRun(
        { ...this.display(), runId: this.runId, afterSequence: this.sequence },
        options,
      );
    }
    if ("send" in request) return this.runs.sendMessage(request.send, options);
    if ("respond" in request) return this.runs.respondToApproval(request.respond, options);
    return this.runs.streamRun(request.resume, options);
  }

  /** Returns the options for events that the request has, for a resumed stream. */
  private display(): MessageInitShape<typeof StreamRunRequestSchema> {
    const { request } = this;
    if ("respond" in request) return { sendMessageAsText: request.respond.sendMessageAsText };
    const { streamTokens, sendMessageAsText } = "send" in request ? request.send : request.resume;
    return { streamTokens, sendMessageAsText };
  }

  private isNew(event: RunEvent): boolean {
    this.setRunId(event.runId);
    if (UNSTORED_EVENTS.has(event.event.case)) return true;
    if (event.sequence <= this.sequence) return false;
    this.sequence = event.sequence;
    return true;
  }

  private setRunId(runId: string): void {
    this.runId ||= runId;
  }
}

/** The transport reports such a request like a broken connection, so that it would be repeated. */
function checkRequest(request: FollowedRequest): void {
  if ("send" in request) checkFields(SendMessageRequestSchema, request.send);
  else if ("respond" in request) checkFields(RespondToApprovalRequestSchema, request.respond);
  else checkFields(StreamRunRequestSchema, request.resume);
}

function checkFields<T extends DescMessage>(schema: T, fields: MessageInitShape<T>): void {
  try {
    toBinary(schema, create(schema, fields));
  } catch (error) {
    throw new ConnectError(
      error instanceof Error ? error.message : String(error),
      Code.InvalidArgument,
      undefined,
      undefined,
      error,
    );
  }
}
