package strata.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Any;
import com.google.rpc.BadRequest;
import com.google.rpc.Code;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import strata.api.agent_loop.v1.Agent;
import strata.api.agent_loop.v1.AgentServiceGrpc;
import strata.api.agent_loop.v1.CompactConversationRequest;
import strata.api.agent_loop.v1.CompactConversationResponse;
import strata.api.agent_loop.v1.GetAgentRequest;
import strata.api.agent_loop.v1.GetAgentResponse;
import strata.api.common.v1.ApprovalBinding;
import strata.api.common.v1.ApprovalDecision;
import strata.api.common.v1.ApprovalRequestPart;
import strata.api.common.v1.ApprovalRequested;
import strata.api.common.v1.Message;
import strata.api.common.v1.MessageStored;
import strata.api.common.v1.Part;
import strata.api.common.v1.Provenance;
import strata.api.common.v1.Role;
import strata.api.common.v1.RunError;
import strata.api.common.v1.RunEvent;
import strata.api.common.v1.RunFinished;
import strata.api.common.v1.RunStarted;
import strata.api.common.v1.StopReason;
import strata.api.common.v1.TextDelta;
import strata.api.common.v1.TextPart;
import strata.api.common.v1.ToolCallPart;
import strata.api.common.v1.ToolStatus;
import strata.api.gateway.v1.RespondToApprovalRequest;
import strata.api.gateway.v1.RespondToApprovalResponse;
import strata.api.gateway.v1.RunServiceGrpc;
import strata.api.gateway.v1.SendMessageRequest;
import strata.api.gateway.v1.SendMessageResponse;
import strata.api.gateway.v1.StreamRunRequest;
import strata.api.gateway.v1.StreamRunResponse;

/** The client, with services on loopback. */
@Timeout(20)
final class StrataTest {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final Context.Key<String> KEY = Context.key("key");
  private static final String RUN = "run-1";

  private final Agents agents = new Agents();
  private final Runs runs = new Runs();
  private final SendOptions quick = quickFor(Duration.ofSeconds(10));
  private Server server;
  private Strata strata;

  /** Answers with one failure after the other, and then with an agent. */
  private static final class Agents extends AgentServiceGrpc.AgentServiceImplBase {
    final Deque<StatusRuntimeException> failures = new ArrayDeque<>();
    final List<String> keys = Collections.synchronizedList(new ArrayList<>());

    @Override
    public void getAgent(GetAgentRequest request, StreamObserver<GetAgentResponse> responses) {
      Agent agent = Agent.newBuilder().setName(request.getName()).build();
      answer(responses, GetAgentResponse.newBuilder().setAgent(agent).build());
    }

    @Override
    public void compactConversation(
        CompactConversationRequest request, StreamObserver<CompactConversationResponse> responses) {
      answer(responses, CompactConversationResponse.getDefaultInstance());
    }

    private synchronized <T> void answer(StreamObserver<T> responses, T response) {
      keys.add(KEY.get());
      if (!failures.isEmpty()) {
        responses.onError(failures.pop());
        return;
      }
      responses.onNext(response);
      responses.onCompleted();
    }
  }

  /** Sends the events of one connection after the other; null breaks it. */
  private static final class Runs extends RunServiceGrpc.RunServiceImplBase {
    final Deque<List<RunEvent>> connections = new ArrayDeque<>();
    final List<SendMessageRequest> sent = new ArrayList<>();
    final List<StreamRunRequest> resumed = new ArrayList<>();
    final List<RespondToApprovalRequest> answered = new ArrayList<>();

    void connection(RunEvent... events) {
      connections.add(Arrays.asList(events));
    }

    @Override
    public void sendMessage(
        SendMessageRequest request, StreamObserver<SendMessageResponse> responses) {
      sent.add(request);
      send(responses, event -> SendMessageResponse.newBuilder().setEvent(event).build());
    }

    @Override
    public void streamRun(StreamRunRequest request, StreamObserver<StreamRunResponse> responses) {
      resumed.add(request);
      send(responses, event -> StreamRunResponse.newBuilder().setEvent(event).build());
    }

    @Override
    public void respondToApproval(
        RespondToApprovalRequest request, StreamObserver<RespondToApprovalResponse> responses) {
      answered.add(request);
      send(responses, event -> RespondToApprovalResponse.newBuilder().setEvent(event).build());
    }

    private <T> void send(StreamObserver<T> responses, Function<RunEvent, T> response) {
      // The last connection stands for all that follow.
      List<RunEvent> events = connections.size() > 1 ? connections.pop() : connections.peek();
      for (RunEvent event : events) {
        if (event == null) {
          responses.onError(unavailable());
          return;
        }
        responses.onNext(response.apply(event));
      }
      responses.onCompleted();
    }
  }

  /** Makes the API key of a call known to its method. */
  private static final class ReadKey implements ServerInterceptor {
    @Override
    public <I, O> ServerCall.Listener<I> interceptCall(
        ServerCall<I, O> call, Metadata headers, ServerCallHandler<I, O> next) {
      Context context = Context.current().withValue(KEY, headers.get(AUTHORIZATION));
      return Contexts.interceptCall(context, call, headers, next);
    }
  }

  @BeforeEach
  void start() throws IOException {
    server =
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(agents)
            .addService(runs)
            .intercept(new ReadKey())
            .build()
            .start();
    // The key is as it is read from a file.
    strata = Strata.connect("127.0.0.1:" + server.getPort(), "key\n");
  }

  @AfterEach
  void stop() {
    strata.close();
    server.shutdownNow();
  }

  @Test
  void callsCarryTheKeyAndRepeatableOnesAreMadeAgain() {
    agents.failures.addAll(List.of(unavailable(), unavailable()));
    GetAgentRequest request = GetAgentRequest.newBuilder().setName("ann").build();
    Agent agent = AgentServiceGrpc.newBlockingStub(strata.channel()).getAgent(request).getAgent();
    assertEquals("ann", agent.getName());
    assertEquals(List.of("Bearer key", "Bearer key", "Bearer key"), agents.keys);
  }

  @Test
  void keysThatCannotBeSentAreRefused() {
    for (String key : List.of("a\nb", "a b", "ключ")) {
      assertThrows(IllegalArgumentException.class, () -> Strata.connect("127.0.0.1:1", key));
    }
  }

  @Test
  void aThirdFailureAndCallsThatAreNotRepeatableAreFailures() {
    var stub = AgentServiceGrpc.newBlockingStub(strata.channel());
    agents.failures.addAll(List.of(unavailable(), unavailable(), unavailable()));
    assertThrows(
        StatusRuntimeException.class, () -> stub.getAgent(GetAgentRequest.getDefaultInstance()));
    assertEquals(3, agents.keys.size());

    agents.failures.add(unavailable());
    var request = CompactConversationRequest.getDefaultInstance();
    assertThrows(StatusRuntimeException.class, () -> stub.compactConversation(request));
    assertEquals(4, agents.keys.size());
  }

  @Test
  void callsAreNotRepeatedBeyondTheirDeadline() {
    agents.failures.add(unavailableFor(Duration.ofMinutes(1)));
    var stub = AgentServiceGrpc.newBlockingStub(strata.channel());
    var error =
        assertThrows(
            StatusRuntimeException.class,
            () -> stub.getAgent(GetAgentRequest.getDefaultInstance()));
    assertEquals(Status.Code.UNAVAILABLE, error.getStatus().getCode());
    assertEquals(1, agents.keys.size());
  }

  @Test
  void aCallThatWaitsForAnotherAttemptIsCancelledAtOnce() throws Exception {
    agents.failures.add(unavailableFor(Duration.ofSeconds(25)));
    var method = AgentServiceGrpc.getGetAgentMethod();
    ClientCall<GetAgentRequest, GetAgentResponse> call =
        strata.channel().newCall(method, CallOptions.DEFAULT);
    var closed = new CompletableFuture<Status>();
    call.start(completing(closed), new Metadata());
    call.request(1);
    call.sendMessage(GetAgentRequest.getDefaultInstance());
    call.halfClose();
    while (agents.keys.isEmpty()) {
      Thread.onSpinWait();
    }
    call.cancel("left", null);
    assertEquals(Status.Code.CANCELLED, closed.get(10, TimeUnit.SECONDS).getCode());
  }

  @Test
  void aCallThatIsCancelledWhileItsAttemptFailsEndsAsCancelled() {
    var attempt = new OpenAttempt();
    var closed = new CompletableFuture<Status>();
    ClientCall<?, ?> call = attempt.repeatedBy(new EndedPauses(), closed);
    call.cancel("left", null);
    attempt.listener.onClose(Status.UNAVAILABLE, new Metadata());
    assertEquals(Status.Code.CANCELLED, closed.getNow(Status.OK).getCode());
  }

  @Test
  void aCallThatIsCancelledWhenAPauseHasEndedEndsAsCancelled() {
    var attempt = new OpenAttempt();
    var pauses = new EndedPauses();
    var closed = new CompletableFuture<Status>();
    ClientCall<?, ?> call = attempt.repeatedBy(pauses, closed);
    attempt.listener.onClose(Status.UNAVAILABLE, new Metadata());
    call.cancel("left", null);
    pauses.next.run();
    assertEquals(Status.Code.CANCELLED, closed.getNow(Status.OK).getCode());
  }

  /** Returns a listener that reports the status with which a call ends. */
  private static <T> ClientCall.Listener<T> completing(CompletableFuture<Status> closed) {
    return new ClientCall.Listener<>() {
      @Override
      public void onClose(Status status, Metadata trailers) {
        closed.complete(status);
      }
    };
  }

  /** An attempt that ends when the test ends it. */
  private static final class OpenAttempt extends Channel {
    ClientCall.Listener<?> listener;

    ClientCall<?, ?> repeatedBy(
        ScheduledExecutorService timer, CompletableFuture<Status> closed) {
      ClientCall<GetAgentRequest, GetAgentResponse> call =
          new RepeatedCalls(timer)
              .interceptCall(AgentServiceGrpc.getGetAgentMethod(), CallOptions.DEFAULT, this);
      call.start(completing(closed), new Metadata());
      return call;
    }

    @Override
    public String authority() {
      return "test";
    }

    @Override
    public <I, O> ClientCall<I, O> newCall(MethodDescriptor<I, O> method, CallOptions options) {
      return new ClientCall<>() {
        @Override
        public void start(Listener<O> attemptListener, Metadata headers) {
          listener = attemptListener;
        }

        @Override
        public void request(int messages) {}

        @Override
        public void cancel(String message, Throwable cause) {}

        @Override
        public void halfClose() {}

        @Override
        public void sendMessage(I message) {}
      };
    }
  }

  /** A timer whose pauses have ended when they are cancelled; the test runs what follows them. */
  private static final class EndedPauses extends ScheduledThreadPoolExecutor {
    Runnable next;

    EndedPauses() {
      super(
          1,
          work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true);
            return thread;
          });
    }

    @Override
    public ScheduledFuture<?> schedule(Runnable command, long delay, TimeUnit unit) {
      next = command;
      ScheduledFuture<?> pause = super.schedule(() -> {}, 0, unit);
      while (!pause.isDone()) {
        Thread.onSpinWait();
      }
      return pause;
    }
  }

  @Test
  void refusedCallsAreMadeOnceAndSayWhy() {
    agents.failures.add(
        StatusProto.toStatusRuntimeException(
            com.google.rpc.Status.newBuilder()
                .setCode(Code.INVALID_ARGUMENT_VALUE)
                .setMessage("no")
                .addDetails(
                    Any.pack(
                        ErrorInfo.newBuilder()
                            .setReason("INVALID_FIELD")
                            .putMetadata("a", "b")
                            .build()))
                .addDetails(
                    Any.pack(
                        BadRequest.newBuilder()
                            .addFieldViolations(
                                BadRequest.FieldViolation.newBuilder()
                                    .setField("name")
                                    .setDescription("is bad"))
                            .build()))
                .addDetails(
                    Any.pack(
                        RetryInfo.newBuilder()
                            .setRetryDelay(
                                com.google.protobuf.Duration.newBuilder().setSeconds(1))
                            .build()))
                .build()));
    var stub = AgentServiceGrpc.newBlockingStub(strata.channel());
    var error =
        assertThrows(
            StatusRuntimeException.class,
            () -> stub.getAgent(GetAgentRequest.getDefaultInstance()));
    Failure failure = Failure.of(error);
    assertEquals(Status.Code.INVALID_ARGUMENT, failure.code());
    assertEquals("no", failure.message());
    assertEquals("INVALID_FIELD", failure.reason());
    assertEquals("b", failure.metadata().get("a"));
    assertEquals(List.of(new Failure.Violation("name", "is bad")), failure.violations());
    assertEquals(Duration.ofSeconds(1), failure.retryAfter());
    assertEquals(1, agents.keys.size());
  }

  @Test
  void aMessageIsSentAgainUntilTheRunIsKnownAndThenResumed() {
    runs.connection((RunEvent) null);
    runs.connection(started(1), delta("He"), null);
    runs.connection(started(1), delta("llo"), finished(2, StopReason.STOP_REASON_END_TURN));
    List<Long> sequences = new ArrayList<>();
    strata.send("agent-1", "Hi.", quick).forEach(event -> sequences.add(event.getSequence()));
    assertEquals(List.of(1L, 0L, 0L, 2L), sequences);
    assertEquals(2, runs.sent.size());
    assertFalse(runs.sent.get(0).getRequestId().isEmpty());
    assertEquals(runs.sent.get(0), runs.sent.get(1));
    assertEquals(1, runs.resumed.size());
    assertEquals(RUN, runs.resumed.get(0).getRunId());
    assertEquals(1, runs.resumed.get(0).getAfterSequence());
  }

  @Test
  void aKnownRunIsFollowedAfterASequence() {
    runs.connection(started(1), delta("Hello"), finished(3, StopReason.STOP_REASON_END_TURN));
    List<RunEvent> events = new ArrayList<>();
    strata.resume(RUN, 2).forEach(events::add);
    assertEquals(2, events.size());
    assertEquals(2, runs.resumed.get(0).getAfterSequence());
  }

  @Test
  void aRunThatIsResumedAfterItsLastEventYieldsNothing() {
    runs.connection();
    List<RunEvent> events = new ArrayList<>();
    assertTimeoutPreemptively(
        Duration.ofSeconds(10), () -> strata.resume(RUN, 2).forEach(events::add));
    assertEquals(List.of(), events);
  }

  @Test
  void withoutContactTheClientGivesUpAndNamesTheRun() {
    runs.connection(started(1), null);
    runs.connection((RunEvent) null);
    SendOptions impatient = quickFor(Duration.ofMillis(30));
    var error =
        assertThrows(UnreachableException.class, () -> strata.ask("agent-1", "Hi.", impatient));
    assertEquals(RUN, error.runId());
    assertInstanceOf(StatusRuntimeException.class, error.getCause());
  }

  @Test
  void anInterruptEndsTheIteration() {
    runs.connection(started(1), null);
    runs.connection((RunEvent) null);
    RunEvents events = strata.send("agent-1", "Hi.");
    assertTrue(events.next().hasRunStarted());
    Thread.currentThread().interrupt();
    assertThrows(StatusRuntimeException.class, events::hasNext);
    assertTrue(Thread.interrupted());
    assertFalse(events.hasNext());
  }

  @Test
  void closingLeavesTheRest() {
    runs.connection(started(1), delta("Hello"), finished(2, StopReason.STOP_REASON_END_TURN));
    RunEvents events = strata.send("agent-1", "Hi.");
    assertTrue(events.next().hasRunStarted());
    events.close();
    assertFalse(events.hasNext());
  }

  @Test
  void askReturnsTheTextsOfTheAgent() {
    runs.connection(
        stored(1, Role.ROLE_USER, "Hi."),
        stored(2, Role.ROLE_ASSISTANT, "First."),
        stored(3, Role.ROLE_ASSISTANT, ""),
        stored(4, Role.ROLE_ASSISTANT, "Second."),
        finished(5, StopReason.STOP_REASON_END_TURN));
    SendOptions options = quick.withEdit(request -> request.setMaxSteps(7));
    assertEquals("First.\n\nSecond.", strata.ask("agent-1", "Hi.", options));
    assertEquals(7, runs.sent.get(0).getMaxSteps());
  }

  @Test
  void askFailsIfTheRunHasNoReply() {
    RunEvent failed =
        event(1)
            .setRunFinished(
                RunFinished.newBuilder().setError(RunError.newBuilder().setMessage("It broke.")))
            .build();
    runs.connection(failed);
    runs.connection(finished(1, StopReason.STOP_REASON_CANCELLED));
    runs.connection(finished(1, StopReason.STOP_REASON_REQUIRES_APPROVAL));
    List<String> messages =
        Stream.generate(
                () -> assertThrows(RunFailedException.class, () -> strata.ask("a", "b", quick)))
            .limit(3)
            .peek(error -> assertEquals(RUN, error.runId()))
            .map(RunFailedException::getMessage)
            .toList();
    assertEquals(
        List.of(
            "It broke.",
            "The run ended with STOP_REASON_CANCELLED.",
            "The run ended with STOP_REASON_REQUIRES_APPROVAL."),
        messages);
  }

  @Test
  void clientToolsAnswerCalls() {
    ApprovalDecision decision = decisionOf(tool(arguments -> "Seen: " + arguments));
    assertEquals("Seen: {\"at\": \"a\"}", decision.getClientReturn());
    assertEquals("hash", decision.getArgumentsHash());
    assertEquals(ToolStatus.TOOL_STATUS_UNSPECIFIED, decision.getClientStatus());
    assertEquals(List.of(), decision.getClientTaintList());
  }

  @Test
  void theModelGetsTheErrorOfATool() {
    ApprovalDecision decision =
        decisionOf(
            tool(
                arguments -> {
                  throw new IOException("too far");
                }));
    assertEquals("IOException: too far", decision.getClientReturn());
    assertEquals(ToolStatus.TOOL_STATUS_FAILED, decision.getClientStatus());
  }

  @Test
  void anErrorOfAnUntrustedToolIsMarked() {
    ClientTool untrusted =
        new ClientTool(
            "look",
            "",
            "{}",
            Provenance.PROVENANCE_WEB,
            arguments -> {
              throw new IOException("The page says: too far");
            });
    ApprovalDecision decision = decisionOf(untrusted);
    assertEquals(ToolStatus.TOOL_STATUS_FAILED, decision.getClientStatus());
    assertEquals(List.of(Provenance.PROVENANCE_WEB), decision.getClientTaintList());
  }

  @Test
  void anInterruptOfAToolEndsTheIterationWithoutAnAnswer() {
    runs.connection(asked(1), finished(2, StopReason.STOP_REASON_REQUIRES_APPROVAL));
    ClientTool slow =
        tool(
            arguments -> {
              Thread.currentThread().interrupt();
              Thread.sleep(10_000);
              return "";
            });
    StatusRuntimeException error =
        assertThrows(
            StatusRuntimeException.class,
            () -> strata.ask("agent-1", "Look.", quick.withTools(slow)));
    assertEquals(Status.Code.CANCELLED, error.getStatus().getCode());
    assertInstanceOf(InterruptedException.class, error.getCause());
    assertTrue(Thread.interrupted());
    assertEquals(List.of(), runs.answered);
  }

  @Test
  void responsesMayBeLargerThanTheDefaultOfGrpc() {
    String text = "x".repeat(5 << 20);
    runs.connection(
        stored(1, Role.ROLE_ASSISTANT, text), finished(2, StopReason.STOP_REASON_END_TURN));
    assertEquals(text.length(), strata.ask("agent-1", "Hi.", quick).length());
  }

  @Test
  void returnsAreMarkedCleanedAndCut() {
    var untrusted =
        new ClientTool("look", "", "{}", Provenance.PROVENANCE_MCP, arguments -> "a\0b\ud800");
    ApprovalDecision decision = decisionOf(untrusted);
    assertEquals("ab?", decision.getClientReturn());
    assertEquals(List.of(Provenance.PROVENANCE_MCP), decision.getClientTaintList());

    String cut = decisionOf(tool(arguments -> "\ud83d\ude00".repeat(300_000))).getClientReturn();
    assertTrue(cut.endsWith("\ud83d\ude00... [cut at 200000 characters]"));
    assertEquals(200_000, cut.codePointCount(0, cut.length()));
  }

  @Test
  void requestsThatWaitForOthersAreLeftToTheCaller() {
    runs.connection(asked(1), finished(2, StopReason.STOP_REASON_REQUIRES_APPROVAL));
    ClientTool other = new ClientTool("listen", "", "{}", arguments -> "");
    for (SendOptions options : List.of(quick, quick.withTools(other))) {
      assertThrows(RunFailedException.class, () -> strata.ask("a", "b", options));
    }
    assertEquals(List.of(), runs.answered);
  }

  private static SendOptions quickFor(Duration patience) {
    return SendOptions.DEFAULT.withBackOff(
        new BackOff(
            Duration.ofMillis(1), Duration.ofMillis(1), patience, Duration.ofSeconds(10)));
  }

  private ApprovalDecision decisionOf(ClientTool tool) {
    runs.answered.clear();
    runs.connections.clear();
    runs.connection(asked(1), finished(2, StopReason.STOP_REASON_REQUIRES_APPROVAL));
    runs.connection(finished(1, StopReason.STOP_REASON_END_TURN));
    assertEquals("", strata.ask("agent-1", "Look.", quick.withTools(tool)));
    assertEquals("approval-1", runs.answered.get(0).getApprovalId());
    return runs.answered.get(0).getDecisions(0);
  }

  private static ClientTool tool(ClientTool.Body body) {
    return new ClientTool("look", "Looks.", "{\"type\": \"object\"}", body);
  }

  private static StatusRuntimeException unavailable() {
    return Status.UNAVAILABLE.withDescription("away").asRuntimeException();
  }

  private static StatusRuntimeException unavailableFor(Duration duration) {
    var delay = com.google.protobuf.Duration.newBuilder().setSeconds(duration.toSeconds());
    return StatusProto.toStatusRuntimeException(
        com.google.rpc.Status.newBuilder()
            .setCode(Code.UNAVAILABLE_VALUE)
            .addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(delay).build()))
            .build());
  }

  private static RunEvent.Builder event(long sequence) {
    return RunEvent.newBuilder().setRunId(RUN).setSequence(sequence);
  }

  private static RunEvent started(long sequence) {
    return event(sequence).setRunStarted(RunStarted.getDefaultInstance()).build();
  }

  private static RunEvent delta(String text) {
    return event(0).setTextDelta(TextDelta.newBuilder().setText(text)).build();
  }

  private static RunEvent stored(long sequence, Role role, String text) {
    Part part = Part.newBuilder().setText(TextPart.newBuilder().setText(text)).build();
    Message message = Message.newBuilder().setRole(role).addParts(part).build();
    return event(sequence)
        .setMessageStored(MessageStored.newBuilder().setMessage(message))
        .build();
  }

  private static RunEvent finished(long sequence, StopReason reason) {
    return event(sequence)
        .setRunFinished(RunFinished.newBuilder().setStopReason(reason))
        .build();
  }

  private static RunEvent asked(long sequence) {
    ApprovalRequestPart request =
        ApprovalRequestPart.newBuilder()
            .setApprovalId("approval-1")
            .addToolCalls(
                ToolCallPart.newBuilder()
                    .setToolCallId("call-1")
                    .setName("look")
                    .setArguments("{\"at\": \"a\"}"))
            .addBindings(
                ApprovalBinding.newBuilder()
                    .setToolCallId("call-1")
                    .setArgumentsHash("hash")
                    .setByClient(true))
            .build();
    return event(sequence)
        .setApprovalRequested(ApprovalRequested.newBuilder().setApproval(request))
        .build();
  }
}
