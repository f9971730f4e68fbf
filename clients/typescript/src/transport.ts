import type { DescMethodUnary } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel as Idempotency } from "@bufbuild/protobuf/wkt";
import { Code, type Transport } from "@connectrpc/connect";

import { failureOf } from "./errors.js";
import { abortableSleep, growingPauses } from "./pauses.js";

/** Options of a connection. */
export interface ConnectionOptions {
  /** API key, sent with each call. */
  apiKey: string;
  /** Timeout of a unary call in milliseconds; 30 s if undefined. Streams have no limit. */
  timeoutMs?: number | undefined;
}

const MAX_ATTEMPTS = 3;
const CALL_MS = 30_000;

/**
 * Returns a transport that sends the API key, limits the time of unary calls, and, while the
 * gateway is unavailable, repeats the calls that the contract declares repeatable. Those that have
 * a request id are repeated only with one.
 *
 * @throws TypeError The API key has blanks, or characters that a header cannot have.
 */
export function gatewayTransport(inner: Transport, options: ConnectionOptions): Transport {
  const { timeoutMs = CALL_MS } = options;
  // A key that was read from a file may end with a newline.
  const apiKey = options.apiKey.trim();
  if (!/^[\x21-\x7e]*$/.test(apiKey)) {
    // Each call would fail, which looks like a broken connection.
    throw new TypeError(
      "The API key has blanks or invalid characters. " +
        "Give the key as it was printed when it was created.",
    );
  }
  const withKey = (header: HeadersInit | undefined): Headers => {
    const headers = new Headers(header);
    if (!headers.has("authorization")) headers.set("authorization", `Bearer ${apiKey}`);
    return headers;
  };
  return {
    async unary(method, signal, callTimeoutMs, header, input, contextValues) {
      const limitMs = Math.min(callTimeoutMs || timeoutMs, timeoutMs);
      const until = Date.now() + limitMs;
      const pauses = growingPauses();
      for (let attempt = 1; ; attempt++) {
        const leftMs = Math.max(until - Date.now(), 1);
        try {
          return await inner.unary(method, signal, leftMs, withKey(header), input, contextValues);
        } catch (error) {
          const failure = failureOf(error);
          const pauseMs = Math.max(pauses.next(), failure.retryAfterMs ?? 0);
          const again =
            isRepeatable(method, input) &&
            failure.code === Code.Unavailable &&
            attempt < MAX_ATTEMPTS &&
            Date.now() + pauseMs < until;
          if (!again) throw error;
          await abortableSleep(pauseMs, signal);
        }
      }
    },
    stream(method, signal, callTimeoutMs, header, input, contextValues) {
      return inner.stream(method, signal, callTimeoutMs, withKey(header), input, contextValues);
    },
  };
}

/** Without its request id, a repeated request would be another one. */
function isRepeatable(
  method: Pick<DescMethodUnary, "idempotency" | "input">,
  request: object,
): boolean {
  const isIdentified = method.input.fields.some((field) => field.name === "request_id");
  if (isIdentified && !("requestId" in request && request.requestId)) return false;
  return (
    method.idempotency === Idempotency.NO_SIDE_EFFECTS ||
    method.idempotency === Idempotency.IDEMPOTENT
  );
}
