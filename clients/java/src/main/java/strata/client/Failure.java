package strata.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/**
 * The details of a failed call that the gateway sent.
 *
 * @param code Status of the call.
 * @param message Explanation for people.
 * @param reason Name of the ErrorReason; empty if the gateway did not answer.
 * @param metadata Values that belong to the reason.
 * @param violations Invalid fields of the request, with the reason.
 * @param retryAfter Time to wait before another attempt; zero if the gateway did not send it.
 */
public record Failure(
    Status.Code code,
    String message,
    String reason,
    Map<String, String> metadata,
    List<Violation> violations,
    Duration retryAfter) {

  /** An invalid field of a request. */
  public record Violation(String field, String description) {}

  /** Returns the details of the error of a call. */
  public static Failure of(StatusRuntimeException error) {
    String description = error.getStatus().getDescription();
    String reason = "";
    Map<String, String> metadata = Map.of();
    List<Violation> violations = List.of();
    Duration retryAfter = Duration.ZERO;
    for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
      try {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          reason = info.getReason();
          metadata = Map.copyOf(info.getMetadataMap());
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
        } else if (detail.is(BadRequest.class)) {
          violations =
              detail.unpack(BadRequest.class).getFieldViolationsList().stream()
                  .map(one -> new Violation(one.getField(), one.getDescription()))
                  .toList();
        }
      } catch (InvalidProtocolBufferException malformed) {
        // A detail that cannot be read is ignored.
        continue;
      }
    }
    return new Failure(
        error.getStatus().getCode(),
        description == null ? "" : description,
        reason,
        metadata,
        violations,
        retryAfter);
  }

  /** Whether the cause is the connection or an overload, and not a refusal. */
  boolean mayBeRepeated() {
    return switch (code) {
      case UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED -> true;
      case RESOURCE_EXHAUSTED -> reason.equals("OVERLOADED");
      // A connection that broke: errors of the gateway have a reason.
      case INTERNAL, UNKNOWN -> reason.isEmpty();
      default -> false;
    };
  }
}
