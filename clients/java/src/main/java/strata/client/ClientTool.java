package strata.client;

import io.grpc.Status;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.Collectors;
import strata.api.common.v1.ApprovalBinding;
import strata.api.common.v1.ApprovalDecision;
import strata.api.common.v1.ApprovalRequestPart;
import strata.api.common.v1.Provenance;
import strata.api.common.v1.ToolCallPart;
import strata.api.common.v1.ToolStatus;

/**
 * A function of this program that agents call.
 *
 * @param name At most 48 characters.
 * @param description Description for the model.
 * @param parametersJson JSON schema of the arguments, an object.
 * @param provenance Source of untrusted returns and exceptions, PROVENANCE_WEB or PROVENANCE_MCP,
 *     which taints the turn; PROVENANCE_UNSPECIFIED if they are trusted.
 * @param body Makes a call.
 */
public record ClientTool(
    String name, String description, String parametersJson, Provenance provenance, Body body) {
  // The gateway's limit for one return, in characters.
  private static final int MAX_CHARS = 200_000;
  private static final String CUT = "... [cut at " + MAX_CHARS + " characters]";

  /** The function that makes a call. */
  @FunctionalInterface
  public interface Body {
    /**
     * Makes a call.
     *
     * @param argumentsJson The arguments of the model, a JSON object that is not validated.
     * @return The return for the model: text, or JSON.
     * @throws InterruptedException The thread was interrupted, which ends the iteration of the
     *     events; the call is not answered.
     * @throws Exception The call failed; the model gets the class and the message of the exception.
     */
    String call(String argumentsJson) throws Exception;
  }

  /** A tool whose returns are trusted. */
  public ClientTool(String name, String description, String parametersJson, Body body) {
    this(name, description, parametersJson, Provenance.PROVENANCE_UNSPECIFIED, body);
  }

  /** Whether a request consists only of calls of these tools. */
  static boolean covers(List<ClientTool> tools, ApprovalRequestPart request) {
    Map<String, ApprovalBinding> bindings = bindings(request);
    return request.getToolCallsList().stream()
        .allMatch(
            call ->
                bindings.containsKey(call.getToolCallId())
                    && bindings.get(call.getToolCallId()).getByClient()
                    && named(tools, call.getName()).isPresent());
  }

  /** Makes the calls of a request that the tools cover, in the order of the request. */
  static List<ApprovalDecision> decide(List<ClientTool> tools, ApprovalRequestPart request) {
    Map<String, ApprovalBinding> bindings = bindings(request);
    return request.getToolCallsList().stream()
        .map(
            call ->
                named(tools, call.getName())
                    .orElseThrow()
                    .decide(call, bindings.get(call.getToolCallId()).getArgumentsHash()))
        .toList();
  }

  private ApprovalDecision decide(ToolCallPart call, String argumentsHash) {
    ApprovalDecision.Builder decision =
        ApprovalDecision.newBuilder()
            .setToolCallId(call.getToolCallId())
            .setArgumentsHash(argumentsHash);
    if (provenance != Provenance.PROVENANCE_UNSPECIFIED) {
      // Messages of exceptions may quote untrusted content, too.
      decision.addClientTaint(provenance);
    }
    try {
      String arguments = call.getArguments();
      decision.setClientReturn(sendable(body.call(arguments.isEmpty() ? "{}" : arguments)));
    } catch (InterruptedException interrupted) {
      // The thread is asked to stop, which is not a failure that the model should get.
      Thread.currentThread().interrupt();
      throw Status.CANCELLED
          .withDescription("The thread was interrupted in the tool " + name + ".")
          .withCause(interrupted)
          .asRuntimeException();
    } catch (Exception error) {
      decision.setClientStatus(ToolStatus.TOOL_STATUS_FAILED);
      decision.setClientReturn(
          sendable(error.getClass().getSimpleName() + ": " + error.getMessage()));
    }
    return decision.build();
  }

  private static Optional<ClientTool> named(List<ClientTool> tools, String name) {
    return tools.stream().filter(tool -> tool.name().equals(name)).findFirst();
  }

  private static Map<String, ApprovalBinding> bindings(ApprovalRequestPart request) {
    return request.getBindingsList().stream()
        .collect(
            Collectors.toMap(
                ApprovalBinding::getToolCallId, Function.identity(), (first, second) -> first));
  }

  /** Returns text that is valid in a message: without NUL and lone surrogates, and truncated. */
  private static String sendable(String text) {
    byte[] bytes = String.valueOf(text).replace("\0", "").getBytes(StandardCharsets.UTF_8);
    String valid = new String(bytes, StandardCharsets.UTF_8);
    if (valid.codePointCount(0, valid.length()) <= MAX_CHARS) {
      return valid;
    }
    return valid.substring(0, valid.offsetByCodePoints(0, MAX_CHARS - CUT.length())) + CUT;
  }
}
