import { type Client, createClient, type Transport } from "@connectrpc/connect";

import { AgentService } from "./strata/api/agent_loop/v1/agent_service_pb.js";
import { GroupService } from "./strata/api/agent_loop/v1/group_service_pb.js";
import { ModelService } from "./strata/api/agent_loop/v1/model_service_pb.js";
import { PromptService } from "./strata/api/agent_loop/v1/prompt_service_pb.js";
import { ArchiveService } from "./strata/api/archival/v1/archive_service_pb.js";
import { PassageIndexService } from "./strata/api/archival/v1/passage_index_service_pb.js";
import { PassageService } from "./strata/api/archival/v1/passage_service_pb.js";
import { BlockService } from "./strata/api/core_memory/v1/block_service_pb.js";
import { FileService } from "./strata/api/core_memory/v1/file_service_pb.js";
import { AdminService } from "./strata/api/gateway/v1/admin_service_pb.js";
import { RunService } from "./strata/api/gateway/v1/run_service_pb.js";
import { ScheduleService } from "./strata/api/gateway/v1/schedule_service_pb.js";
import { WebhookService } from "./strata/api/gateway/v1/webhook_service_pb.js";
import { MessageIndexService } from "./strata/api/recall/v1/message_index_service_pb.js";
import { MessageService } from "./strata/api/recall/v1/message_service_pb.js";
import { McpService } from "./strata/api/tool_execution/v1/mcp_service_pb.js";
import { ToolService } from "./strata/api/tool_execution/v1/tool_service_pb.js";

/** Clients of all public services. Each RPC is a method that takes the fields of its request. */
export class Services {
  /** Agents and their conversations. */
  readonly agents: Client<typeof AgentService>;
  /** Groups of agents. */
  readonly groups: Client<typeof GroupService>;
  /** Chat models. */
  readonly models: Client<typeof ModelService>;
  /** System prompts. */
  readonly prompts: Client<typeof PromptService>;
  /** Core memory. */
  readonly blocks: Client<typeof BlockService>;
  /** Folders and files. */
  readonly files: Client<typeof FileService>;
  /** Recall memory. */
  readonly messages: Client<typeof MessageService>;
  /** The index of recall memory. */
  readonly messageIndex: Client<typeof MessageIndexService>;
  /** Archives. */
  readonly archives: Client<typeof ArchiveService>;
  /** Archival memory. */
  readonly passages: Client<typeof PassageService>;
  /** The indexes of archival memory and of files. */
  readonly passageIndex: Client<typeof PassageIndexService>;
  /** Tools. */
  readonly tools: Client<typeof ToolService>;
  /** MCP servers. */
  readonly mcp: Client<typeof McpService>;
  /** Runs. */
  readonly runs: Client<typeof RunService>;
  /** Schedules. */
  readonly schedules: Client<typeof ScheduleService>;
  /** Webhooks. */
  readonly webhooks: Client<typeof WebhookService>;
  /** Projects and keys. */
  readonly admin: Client<typeof AdminService>;

  /** @param transport Makes the calls. */
  constructor(transport: Transport) {
    this.agents = createClient(AgentService, transport);
    this.groups = createClient(GroupService, transport);
    this.models = createClient(ModelService, transport);
    this.prompts = createClient(PromptService, transport);
    this.blocks = createClient(BlockService, transport);
    this.files = createClient(FileService, transport);
    this.messages = createClient(MessageService, transport);
    this.messageIndex = createClient(MessageIndexService, transport);
    this.archives = createClient(ArchiveService, transport);
    this.passages = createClient(PassageService, transport);
    this.passageIndex = createClient(PassageIndexService, transport);
    this.tools = createClient(ToolService, transport);
    this.mcp = createClient(McpService, transport);
    this.runs = createClient(RunService, transport);
    this.schedules = createClient(ScheduleService, transport);
    this.webhooks = createClient(WebhookService, transport);
    this.admin = createClient(AdminService, transport);
  }
}
