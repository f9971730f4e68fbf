package strata.client;

import static java.util.stream.Collectors.joining;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import strata.api.common.v1.ApprovalRequestPart;
import strata.api.common.v1.Message;
import strata.api.common.v1.MessageInput;
import strata.api.common.v1.Part;
import strata.api.common.v1.Role;
import strata.api.common.v1.RunEvent;
import strata.api.common.v1.RunFinished;
import strata.api.common.v1.StopReason;
import strata.api.common.v1.TextPart;
import strata.api.common.v1.ToolType;
import strata.api.gateway.v1.RespondToApprovalRequest;
import strata.api.gateway.v1.RunServiceGrpc;
import strata.api.gateway.v1.SendMessageRequest;
import strata.api.gateway.v1.StreamRunRequest;
import strata.api.tool_execution.v1.Tool;
import strata.api.tool_execution.v1.ToolServiceGrpc;
import strata.api.tool_execution.v1.UpsertToolRequest;

/**
 * A client of one gateway. It offers a channel for the generated stubs, which sends the API key and
 * repeats calls that may be repeated; runs that survive a broken connection; and client tools.
 *
 * <p>It is safe for use by several threads.
 */
public final class Strata implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final long CALL_SECONDS = 30;
  private static final long PING_SECONDS = 10;
  // The default of gRPC, 4 MiB, is less than a gateway can be configured to send.
  private static final int MAX_MESSAGE_BYTES = 16 << 20;

  private final ManagedChannel transport;
  private final ScheduledExecutorService timer;
  private final Channel channel;
  private final RunServiceGrpc.RunServiceBlockingStub runs;

  private Strata(ManagedChannel transport, String apiKey) {
    Metadata headers = new Metadata();
    headers.put(AUTHORIZATION, "Bearer " + checkedKey(apiKey));
    this.transport = transport;
    this.timer = Executors.newSingleThreadScheduledExecutor(Strata::newTimerThread);
    // The last interceptor is called first.
    this.channel =
        ClientInterceptors.intercept(
            transport,
            MetadataUtils.newAttachHeadersInterceptor(headers),
            new RepeatedCalls(timer),
            new UnaryDeadline());
    this.runs = RunServiceGrpc.newBlockingStub(channel);
  }

  /**
   * Connects to the gateway that the environment names.
   *
   * @throws IllegalArgumentException STRATA_ADDRESS or STRATA_API_KEY is not set.
   */
  public static Strata connect() {
    return connect(variable("STRATA_ADDRESS"), variable("STRATA_API_KEY"));
  }

  /**
   * Returns a client that connects to a gateway at the first call.
   *
   * @param address Its gRPC port: {@code localhost:7600}, or {@code https://host} for TLS.
   * @param apiKey API key, sent with each call.
   * @throws IllegalArgumentException The key has blanks or invalid characters.
   */
  public static Strata connect(String address, String apiKey) {
    String key = checkedKey(apiKey);
    boolean tls = address.startsWith("https://");
    String target = address.replaceFirst("^https?://", "").replaceFirst("/$", "");
    ManagedChannelBuilder<?> builder =
        Grpc.newChannelBuilder(
            target, tls ? TlsChannelCredentials.create() : InsecureChannelCredentials.create());
    builder.keepAliveTime(PING_SECONDS, TimeUnit.SECONDS);
    return of(builder.maxInboundMessageSize(MAX_MESSAGE_BYTES).build(), key);
  }

  /**
   * Returns a client on a channel with any settings, such as TLS with a private authority.
   *
   * @param transport The channel; closed with the client.
   * @param apiKey API key, sent with each call.
   * @throws IllegalArgumentException The key has blanks or invalid characters.
   */
  public static Strata of(ManagedChannel transport, String apiKey) {
    return new Strata(transport, apiKey);
  }

  /** Returns the channel for stubs; a unary call without a deadline gets one of 30 seconds. */
  public Channel channel() {
    return channel;
  }

  /** Returns a new idempotency key, so that a repeated call takes effect once. */
  public static String newRequestId() {
    return "java-" + UUID.randomUUID();
  }

  /**
   * Sends a message, and returns the events of its run, up to its end.
   *
   * @see #send(String, String, SendOptions)
   */
  public RunEvents send(String agentId, String text) {
    return send(agentId, text, SendOptions.DEFAULT);
  }

  /**
   * Sends a message, and returns the events of its run, up to its end.
   *
   * <p>Calls of client tools are answered with the tools of the options, and the events of the
   * continuing run follow, so only the last RunFinished is final. The iteration ends at a run that
   * waits for anything else. A broken connection is resumed after the last event; the message takes
   * effect once.
   *
   * @param agentId The agent.
   * @param text The text of the message.
   * @param options Options for sending it.
   */
  public RunEvents send(String agentId, String text, SendOptions options) {
    Part part = Part.newBuilder().setText(TextPart.newBuilder().setText(text)).build();
    SendMessageRequest.Builder builder =
        SendMessageRequest.newBuilder()
            .setRequestId(newRequestId())
            .setAgentId(agentId)
            .addMessages(MessageInput.newBuilder().setRole(Role.ROLE_USER).addParts(part));
    options.edit().accept(builder);
    SendMessageRequest request = builder.build();
    StreamRunRequest.Builder resumed = StreamRunRequest.newBuilder();
    if (request.hasStreamTokens()) {
      resumed.setStreamTokens(request.getStreamTokens());
    }
    if (request.hasSendMessageAsText()) {
      resumed.setSendMessageAsText(request.getSendMessageAsText());
    }
    RunFollower follower =
        new RunFollower(
            runs,
            stub -> RunEvents.map(stub.sendMessage(request), response -> response.getEvent()),
            resumed.build(),
            options.backOff());
    return new RunEvents(
        follower, options.tools(), asked -> answering(asked, request, options));
  }

  private RunFollower answering(
      ApprovalRequestPart asked, SendMessageRequest sent, SendOptions options) {
    RespondToApprovalRequest.Builder builder =
        RespondToApprovalRequest.newBuilder()
            .setRequestId(newRequestId())
            .setApprovalId(asked.getApprovalId())
            .addAllDecisions(ClientTool.decide(options.tools(), asked))
            .setMaxSteps(sent.getMaxSteps());
    StreamRunRequest.Builder resumed = StreamRunRequest.newBuilder();
    if (sent.hasSendMessageAsText()) {
      builder.setSendMessageAsText(sent.getSendMessageAsText());
      resumed.setSendMessageAsText(sent.getSendMessageAsText());
    }
    RespondToApprovalRequest request = builder.build();
    return new RunFollower(
        runs,
        stub -> RunEvents.map(stub.respondToApproval(request), response -> response.getEvent()),
        resumed.build(),
        options.backOff());
  }

  /**
   * Sends a message, and returns the reply.
   *
   * @see #ask(String, String, SendOptions)
   */
  public String ask(String agentId, String text) {
    return ask(agentId, text, SendOptions.DEFAULT);
  }

  /**
   * Sends a message, and returns the reply: the texts of the agent, joined by empty lines.
   *
   * @param agentId The agent.
   * @param text The text of the message.
   * @param options Options for sending it.
   * @throws RunFailedException The run failed, was cancelled, or waits for an approval.
   * @throws UnreachableException The gateway could not be reached for too long.
   * @throws io.grpc.StatusRuntimeException The gateway refused.
   */
  public String ask(String agentId, String text, SendOptions options) {
    List<String> texts = new ArrayList<>();
    RunEvent last = RunEvent.getDefaultInstance();
    try (RunEvents events = send(agentId, text, options)) {
      for (RunEvent event : events) {
        last = event;
        Message message = event.getMessageStored().getMessage();
        if (message.getRole() == Role.ROLE_ASSISTANT && !textOf(message).isEmpty()) {
          texts.add(textOf(message));
        }
      }
    }
    RunFinished finished = last.getRunFinished();
    if (finished.hasError()
        || finished.getStopReason() == StopReason.STOP_REASON_CANCELLED
        || finished.getStopReason() == StopReason.STOP_REASON_REQUIRES_APPROVAL) {
      throw new RunFailedException(last.getRunId(), finished);
    }
    return String.join("\n\n", texts);
  }

  /**
   * Returns the events of a run after a sequence number, up to its end, across lost connections.
   * The program must have kept the id of the run and the sequence number of the last event that it
   * received.
   *
   * @param runId The run.
   * @param afterSequence Sequence number of the last event that was received; 0 for all events.
   */
  public RunEvents resume(String runId, long afterSequence) {
    StreamRunRequest known =
        StreamRunRequest.newBuilder().setRunId(runId).setAfterSequence(afterSequence).build();
    RunFollower follower = new RunFollower(runs, stub -> null, known, BackOff.DEFAULT);
    return new RunEvents(follower, List.of(), asked -> null);
  }

  /**
   * Registers a function of this program as a client tool; agents use it by its name.
   *
   * @throws io.grpc.StatusRuntimeException The gateway refused.
   */
  public Tool upsertClientTool(ClientTool tool) {
    UpsertToolRequest request =
        UpsertToolRequest.newBuilder()
            .setRequestId(newRequestId())
            .setType(ToolType.TOOL_TYPE_CLIENT)
            .setName(tool.name())
            .setDescription(tool.description())
            .setParametersJson(tool.parametersJson())
            .build();
    return ToolServiceGrpc.newBlockingStub(channel).upsertTool(request).getTool();
  }

  /** Returns the text of a message, without reasoning and calls. */
  public static String textOf(Message message) {
    return message.getPartsList().stream().map(part -> part.getText().getText()).collect(joining());
  }

  /** Closes the connection; calls under way fail. */
  @Override
  public void close() {
    timer.shutdownNow();
    transport.shutdownNow();
  }

  /** Returns the key without the newline at its end, if it was read from a file. */
  private static String checkedKey(String apiKey) {
    String key = apiKey.strip();
    if (!key.chars().allMatch(character -> character > ' ' && character <= '~')) {
      // gRPC would leave it out, and log it.
      throw new IllegalArgumentException(
          "The API key has blanks or invalid characters."
              + " Give the key as it was printed when it was created.");
    }
    return key;
  }

  private static Thread newTimerThread(Runnable work) {
    Thread thread = new Thread(work, "strata-client");
    thread.setDaemon(true);
    return thread;
  }

  private static String variable(String name) {
    String value = System.getenv(name);
    if (value == null || value.isEmpty()) {
      throw new IllegalArgumentException("Set the environment variable " + name + ".");
    }
    return value;
  }

  /** Limits the time of unary calls. */
  private static final class UnaryDeadline implements ClientInterceptor {
    @Override
    public <I, O> ClientCall<I, O> interceptCall(
        MethodDescriptor<I, O> method, CallOptions options, Channel next) {
      boolean limited =
          method.getType() != MethodDescriptor.MethodType.UNARY || options.getDeadline() != null;
      return next.newCall(
          method, limited ? options : options.withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS));
    }
  }
}
