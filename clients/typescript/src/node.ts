import { createGrpcTransport } from "@connectrpc/connect-node";

import { StrataClient } from "./client.js";

export * from "./index.js";

/** Address of the gateway, and the key; fields that are not set are read from the environment. */
export interface NodeOptions {
  /**
   * Address of the gateway's gRPC port: `localhost:7600`, or `https://host` for TLS; from
   * `STRATA_ADDRESS` if undefined.
   */
  address?: string | undefined;
  /** The API key; from `STRATA_API_KEY` if undefined. */
  apiKey?: string | undefined;
  /** Timeout of a unary call in milliseconds; 30 s if undefined. Streams have no limit. */
  timeoutMs?: number | undefined;
  /** TLS options of Node: `{ ca }` for certificates that are not signed by a public authority. */
  tls?: { ca?: string | Buffer; cert?: string | Buffer; key?: string | Buffer } | undefined;
}

/** Proxies may treat more frequent pings as an attack. */
const PING_MS = 10_000;

/**
 * Returns a client that uses gRPC. It connects at the first call.
 *
 * @throws TypeError The address or the API key is missing, or the address is not valid.
 */
export function connect(options: NodeOptions = {}): StrataClient {
  const address = options.address || process.env.STRATA_ADDRESS;
  const apiKey = options.apiKey || process.env.STRATA_API_KEY;
  if (!address) throw new TypeError("There is no address. Give `address`, or set STRATA_ADDRESS.");
  if (!apiKey) throw new TypeError("There is no API key. Give `apiKey`, or set STRATA_API_KEY.");
  const baseUrl = /^https?:\/\//i.test(address) ? address : `http://${address}`;
  if (!URL.canParse(baseUrl)) {
    throw new TypeError(`'${address}' is not an address. Give host:port, or https://host.`);
  }
  const transport = createGrpcTransport({
    baseUrl,
    pingIntervalMs: PING_MS,
    ...(options.tls && { nodeOptions: options.tls }),
  });
  return new StrataClient(transport, { apiKey, timeoutMs: options.timeoutMs });
}
