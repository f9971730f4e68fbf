package strata.examples;

import static java.util.stream.Collectors.joining;

import io.grpc.StatusRuntimeException;
import java.util.Iterator;
import strata.api.agent_loop.v1.AgentServiceGrpc;
import strata.api.agent_loop.v1.CreateAgentRequest;
import strata.api.agent_loop.v1.GetAgentRequest;
import strata.api.common.v1.ApprovalDecision;
import strata.api.common.v1.ApprovalRequestPart;
import strata.api.common.v1.Message;
import strata.api.common.v1.MessageInput;
import strata.api.common.v1.Part;
import strata.api.common.v1.Role;
import strata.api.common.v1.RunEvent;
import strata.api.common.v1.TextPart;
import strata.api.common.v1.ToolType;
import strata.api.core_memory.v1.NewBlock;
import strata.api.gateway.v1.RespondToApprovalRequest;
import strata.api.gateway.v1.RespondToApprovalResponse;
import strata.api.gateway.v1.RunServiceGrpc;
import strata.api.gateway.v1.SendMessageRequest;
import strata.api.gateway.v1.SendMessageResponse;
import strata.api.gateway.v1.StreamRunRequest;
import strata.api.gateway.v1.StreamRunResponse;
import strata.api.tool_execution.v1.ToolServiceGrpc;
import strata.api.tool_execution.v1.UpsertToolRequest;
import strata.client.Strata;

public final class FiveTasks {
  private final AgentServiceGrpc.AgentServiceBlockingStub agents;
  private final RunServiceGrpc.RunServiceBlockingStub runs;
  private final ToolServiceGrpc.ToolServiceBlockingStub tools;

  private FiveTasks(Strata strata) {
    agents = AgentServiceGrpc.newBlockingStub(strata.channel());
    runs = RunServiceGrpc.newBlockingStub(strata.channel());
    tools = ToolServiceGrpc.newBlockingStub(strata.channel());
  }

  public static void main(String[] arguments) throws InterruptedException {
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

  private Iterator<SendMessageResponse> send(String agentId, String text) {
    Part part = Part.newBuilder().setText(TextPart.newBuilder().setText(text)).build();
    return runs.sendMessage(
        SendMessageRequest.newBuilder()
            .setRequestId(Strata.newRequestId())
            .setAgentId(agentId)
            .addMessages(MessageInput.newBuilder().setRole(Role.ROLE_USER).addParts(part))
            .build());
  }

  private static String textOf(Message message) {
    return message.getPartsList().stream().map(part -> part.getText().getText()).collect(joining());
  }

  private static void printReply(String name, RunEvent event) {
    Message message = event.getMessageStored().getMessage();
    if (message.getRole() == Role.ROLE_ASSISTANT && !textOf(message).isEmpty()) {
      System.out.println(name + ": " + textOf(message));
    }
  }

  private void ask(String agentId) {
    send(agentId, "Where do I live?")
        .forEachRemaining(response -> printReply("reply", response.getEvent()));
  }

  private void stream(String agentId) {
    Iterator<SendMessageResponse> responses = send(agentId, "What did I say about trains?");
    while (responses.hasNext()) {
      RunEvent event = responses.next().getEvent();
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
    tools.upsertTool(
        UpsertToolRequest.newBuilder()
            .setType(ToolType.TOOL_TYPE_CLIENT)
            .setName("read_clipboard")
            .setDescription("Reads the clipboard of the user.")
            .setParametersJson(
                "{\"type\": \"object\", \"properties\": {\"format\": {\"type\": \"string\"}}}")
            .build());
    CreateAgentRequest helper = CreateAgentRequest.newBuilder().addTools("read_clipboard").build();
    String helperId = agents.createAgent(helper).getAgent().getId();
    Iterator<SendMessageResponse> responses = send(helperId, "What have I copied?");
    while (responses.hasNext()) {
      RunEvent event = responses.next().getEvent();
      if (event.hasApprovalRequested()) {
        answer(event.getApprovalRequested().getApproval());
      }
    }
  }

  private void answer(ApprovalRequestPart asked) {
    RespondToApprovalRequest.Builder request =
        RespondToApprovalRequest.newBuilder()
            .setRequestId(Strata.newRequestId())
            .setApprovalId(asked.getApprovalId());
    asked.getBindingsList().stream()
        .map(
            call ->
                ApprovalDecision.newBuilder()
                    .setToolCallId(call.getToolCallId())
                    .setArgumentsHash(call.getArgumentsHash())
                    .setClientReturn("{\"text\": \"Lisbon to Porto, 9:30\"}"))
        .forEach(request::addDecisions);
    Iterator<RespondToApprovalResponse> responses = runs.respondToApproval(request.build());
    responses.forEachRemaining(response -> printReply("answer", response.getEvent()));
  }

  private void resume(String agentId) throws InterruptedException {
    Iterator<SendMessageResponse> responses = send(agentId, "Plan a week in Porto.");
    RunEvent event;
    long sequence = 0;
    do {
      event = responses.next().getEvent();
      sequence = Math.max(sequence, event.getSequence());
    } while (!event.hasTextDelta());
    System.out.println("left"); // The run goes on.
    String runId = event.getRunId();
    while (!event.hasRunFinished()) {
      StreamRunRequest.Builder request = StreamRunRequest.newBuilder().setRunId(runId);
      try {
        Iterator<StreamRunResponse> followed =
            runs.streamRun(request.setAfterSequence(sequence).build());
        while (followed.hasNext()) {
          event = followed.next().getEvent();
          sequence = Math.max(sequence, event.getSequence());
          printReply("plan", event);
        }
      } catch (StatusRuntimeException broken) {
        if (!Strata.mayBeRepeated(broken)) {
          throw broken;
        }
        Thread.sleep(200);
      }
    }
  }

  private void refuse() {
    try {
      agents.getAgent(GetAgentRequest.newBuilder().setName("nobody").build());
    } catch (StatusRuntimeException error) {
      String message = error.getStatus().getDescription();
      System.out.printf("refused: %s %s%n", Strata.reasonOf(error).orElse(""), message);
    }
  }
}
