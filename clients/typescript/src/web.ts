import { createConnectTransport } from "@connectrpc/connect-web";

import { StrataClient } from "./client.js";
import type { ConnectionOptions } from "./transport.js";

export * from "./index.js";

/** URL of the gateway, and the key. */
export interface WebOptions extends ConnectionOptions {
  /** Base URL of the gateway's HTTP port: `http://127.0.0.1:7680`. */
  baseUrl: string;
}

/**
 * Returns a client that uses the Connect protocol, with `fetch`.
 *
 * `files.uploadFile` and `agents.importAgent` stream their requests, which `fetch` cannot do.
 */
export function connect({ baseUrl, ...options }: WebOptions): StrataClient {
  const transport = createConnectTransport({ baseUrl, useBinaryFormat: true });
  return new StrataClient(transport, options);
}
