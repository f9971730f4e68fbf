/**
 * Strata for TypeScript and JavaScript. `connect` is in `@strata/client/node` for Node and in
 * `@strata/client/web` for browsers; messages and enumerations are in `@strata/client/api/...`.
 *
 * @module
 */
export {
  newRequestId,
  type ResumeOptions,
  type SendOptions,
  StrataClient,
  textOf,
} from "./client.js";
export { type ClientTool, ClientTools, Untrusted } from "./client_tools.js";
export { type Failure, failureOf, RunFailedError, UnreachableError } from "./errors.js";
export type { BackOff } from "./pauses.js";
export { type FollowedRequest, type FollowOptions, RunFollower } from "./run_follower.js";
export { Services } from "./services.js";
export type { ConnectionOptions } from "./transport.js";
