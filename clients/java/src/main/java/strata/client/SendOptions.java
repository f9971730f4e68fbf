package strata.client;

import java.util.List;
import java.util.function.Consumer;
import strata.api.gateway.v1.SendMessageRequest;

/**
 * Options for sending a message.
 *
 * @param tools Functions for client tools. The agent needs client tools of these names.
 * @param backOff Pauses between attempts to reconnect.
 * @param edit Changes other fields of the request before it is sent.
 */
public record SendOptions(
    List<ClientTool> tools, BackOff backOff, Consumer<SendMessageRequest.Builder> edit) {
  /** The defaults of client and server. */
  public static final SendOptions DEFAULT =
      new SendOptions(List.of(), BackOff.DEFAULT, request -> {});

  /** Copies the list of tools. */
  public SendOptions {
    tools = List.copyOf(tools);
  }

  /** Returns these options with other client tools. */
  public SendOptions withTools(ClientTool... tools) {
    return new SendOptions(List.of(tools), backOff, edit);
  }

  /** Returns these options with other pauses. */
  public SendOptions withBackOff(BackOff backOff) {
    return new SendOptions(tools, backOff, edit);
  }

  /** Returns these options with another change of the request, such as its conversation. */
  public SendOptions withEdit(Consumer<SendMessageRequest.Builder> edit) {
    return new SendOptions(tools, backOff, edit);
  }
}
