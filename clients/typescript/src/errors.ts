import { Code, ConnectError } from "@connectrpc/connect";

import type { RunFinished } from "./strata/api/common/v1/run_event_pb.js";
import { StopReason } from "./strata/api/common/v1/run_event_pb.js";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./google/rpc/error_details_pb.js";

/** The details of a failed call that the gateway sent. */
export interface Failure {
  /** Status of the call. */
  code: Code;
  /** Explanation for people. */
  message: string;
  /** Name of the `ErrorReason`, such as "AGENT_NOT_FOUND"; empty if the gateway did not answer. */
  reason: string;
  /** Values that belong to the reason. */
  metadata: Record<string, string>;
  /** Invalid fields of the request, with the reason. */
  violations: { field: string; description: string }[];
  /** Milliseconds to wait before another attempt; undefined if the gateway did not send it. */
  retryAfterMs: number | undefined;
}

/** Returns the details of the error of a call. */
export function failureOf(error: unknown): Failure {
  const failed = ConnectError.from(error);
  const [info] = failed.findDetails(ErrorInfoSchema);
  const delay = failed.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return {
    code: failed.code,
    message: failed.rawMessage,
    reason: info?.reason ?? "",
    metadata: info?.metadata ?? {},
    violations: failed
      .findDetails(BadRequestSchema)
      .flatMap((request) => request.fieldViolations)
      .map(({ field, description }) => ({ field, description })),
    retryAfterMs: delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6,
  };
}

/** Whether the cause of a failure is the connection or an overload, and not a refusal. */
export function mayBeRepeated(failure: Failure): boolean {
  switch (failure.code) {
    case Code.Unavailable:
    case Code.DeadlineExceeded:
    case Code.Canceled:
      return true;
    case Code.ResourceExhausted:
      return failure.reason === "OVERLOADED";
    case Code.Aborted:
    case Code.Internal:
    case Code.Unknown:
      // A connection that broke: errors of the gateway have a reason.
      return failure.reason === "";
    default:
      return false;
  }
}

/** A run that ended without a reply. */
export class RunFailedError extends Error {
  override name = "RunFailedError";

  /**
   * @param runId Id of the run.
   * @param finished How it ended.
   */
  constructor(
    readonly runId: string,
    readonly finished: RunFinished,
  ) {
    super(finished.error?.message || `The run ended with ${StopReason[finished.stopReason]}.`);
  }

  /** Name of the `ErrorReason`, or of the stop reason of a run without an error. */
  get reason(): string {
    return this.finished.error?.reason || StopReason[this.finished.stopReason];
  }
}

/** Thrown after too long a time without contact with the gateway. */
export class UnreachableError extends Error {
  override name = "UnreachableError";

  /**
   * @param runId Id of the run, which continues; empty if the message was not accepted.
   * @param cause The last failure.
   */
  constructor(
    readonly runId: string,
    cause: unknown,
  ) {
    super(
      runId
        ? "The gateway no longer answers. The run continues when it is back; see: " +
          `strata runs show ${runId}`
        : "The gateway does not answer; the message was not accepted.",
      { cause },
    );
  }
}
