package strata.examples;

import io.grpc.StatusRuntimeException;
import strata.api.agent_loop.v1.AgentServiceGrpc;
import strata.api.agent_loop.v1.CreateAgentRequest;
import strata.api.agent_loop.v1.GetAgentRequest;
import strata.api.common.v1.RunEvent;
import strata.api.core_memory.v1.NewBlock;
import strata.client.ClientTool;
import strata.client.Failure;
import strata.client.RunEvents;
import strata.client.SendOptions;
import strata.client.Strata;

public final class FiveTasks {
  private final Strata strata;
  private final AgentServiceGrpc.AgentServiceBlockingStub agents;

  private FiveTasks(Strata strata) {
    this.strata = strata;
    agents = AgentServiceGrpc.newBlockingStub(strata.channel());
  }

  public static void main(String[] arguments) {
    try (Strata strata = Strata.connect()) { // STRATA_ADDRESS and STRATA_API_KEY
      FiveTasks tasks = new FiveTasks(strata);
      String agentId = tasks.createAgent();
      tasks.ask(agentId);
      tasks.stream(agentId);
      tasks.runClientTool();
      tasks.resume(agentId);
      tasks.refuse();
    }
  }

  private String createAgent() {
    CreateAgentRequest.Builder request = CreateAgentRequest.newBuilder();
    request.addBlocksBuilder().setLabel("human").setValue("Her name is Ann. She lives in Lisbon.");
    request.addBlocks(
        NewBlock.newBuilder()
            .setLabel("persona")
            .setValue("A travel agent who answers in one sentence."));
    return agents.createAgent(request.build()).getAgent().getId();
  }

  private void ask(String agentId) {
    System.out.println("reply: " + strata.ask(agentId, "Where do I live?"));
  }

  private void stream(String agentId) {
    for (RunEvent event : strata.send(agentId, "What did I say about trains?")) {
      switch (event.getEventCase()) {
        case TOOL_STARTED ->
            System.out.printf(
                "call: %s %s%n",
                event.getToolStarted().getName(), event.getToolStarted().getArguments());
        case TEXT_DELTA -> System.out.print(event.getTextDelta().getText());
        default -> {}
      }
    }
    System.out.println();
  }

  private void runClientTool() {
    ClientTool readClipboard =
        new ClientTool(
            "read_clipboard",
            "Reads the clipboard of the user.",
            "{\"type\": \"object\", \"properties\": {\"format\": {\"type\": \"string\"}}}",
            argumentsJson -> "{\"text\": \"Lisbon to Porto, 9:30\"}");
    strata.upsertClientTool(readClipboard);
    CreateAgentRequest helper =
        CreateAgentRequest.newBuilder().addTools(readClipboard.name()).build();
    String helperId = agents.createAgent(helper).getAgent().getId();
    SendOptions options = SendOptions.DEFAULT.withTools(readClipboard);
    System.out.println("answer: " + strata.ask(helperId, "What have I copied?", options));
  }

  private void resume(String agentId) {
    String runId = "";
    long sequence = 0;
    try (RunEvents events = strata.send(agentId, "Plan a week in Porto.")) {
      for (RunEvent event : events) {
        runId = event.getRunId();
        sequence = Math.max(sequence, event.getSequence());
        if (event.hasTextDelta()) {
          break; // The run continues.
        }
      }
    }
    System.out.println("left");
    for (RunEvent event : strata.resume(runId, sequence)) {
      if (event.hasMessageStored()) {
        System.out.println("plan: " + Strata.textOf(event.getMessageStored().getMessage()));
      }
    }
  }

  private void refuse() {
    try {
      agents.getAgent(GetAgentRequest.newBuilder().setName("nobody").build());
    } catch (StatusRuntimeException error) {
      Failure failure = Failure.of(error);
      System.out.printf("refused: %s %s%n", failure.reason(), failure.message());
    }
  }
}
