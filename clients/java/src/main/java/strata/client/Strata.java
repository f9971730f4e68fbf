package strata.client;

import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
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
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/** A connection to a gateway: a channel for the generated stubs, which sends the API key. */
public final class Strata implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final long CALL_SECONDS = 30;
  private static final long PING_SECONDS = 10;

  private final ManagedChannel transport;
  private final Channel channel;

  private Strata(ManagedChannel transport, String apiKey) {
    Metadata headers = new Metadata();
    headers.put(AUTHORIZATION, "Bearer " + apiKey);
    this.transport = transport;
    this.channel =
        ClientInterceptors.intercept(
            transport, MetadataUtils.newAttachHeadersInterceptor(headers), new UnaryDeadline());
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
   * Connects to a gateway, at the first call.
   *
   * @param address Its gRPC port: {@code localhost:7600}, or {@code https://host} for TLS.
   * @param apiKey Sent with each call.
   */
  public static Strata connect(String address, String apiKey) {
    boolean tls = address.startsWith("https://");
    String target = address.replaceFirst("^https?://", "").replaceFirst("/$", "");
    ManagedChannelBuilder<?> builder =
        Grpc.newChannelBuilder(
            target, tls ? TlsChannelCredentials.create() : InsecureChannelCredentials.create());
    return new Strata(builder.keepAliveTime(PING_SECONDS, TimeUnit.SECONDS).build(), apiKey);
  }

  /** Returns the channel for stubs; a unary call without a deadline has 30 seconds. */
  public Channel channel() {
    return channel;
  }

  /** Returns a new idempotency key, so that a call that is repeated takes effect once. */
  public static String newRequestId() {
    return "java-" + UUID.randomUUID();
  }

  /** Returns the name of the ErrorReason of a refused call; empty if the gateway did not answer. */
  public static Optional<String> reasonOf(StatusRuntimeException error) {
    return StatusProto.fromThrowable(error).getDetailsList().stream()
        .filter(detail -> detail.is(ErrorInfo.class))
        .findFirst()
        .map(
            detail -> {
              try {
                return detail.unpack(ErrorInfo.class).getReason();
              } catch (InvalidProtocolBufferException malformed) {
                throw new IllegalArgumentException(malformed);
              }
            });
  }

  /**
   * Whether the cause of a failure is the connection or an overload, and not a refusal: a run can be
   * followed again after its last event.
   */
  public static boolean mayBeRepeated(StatusRuntimeException error) {
    String reason = reasonOf(error).orElse("");
    return switch (error.getStatus().getCode()) {
      case UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED -> true;
      case RESOURCE_EXHAUSTED -> reason.equals("OVERLOADED");
      // A connection that broke; an error of the gateway itself has a reason.
      case INTERNAL, UNKNOWN -> reason.isEmpty();
      default -> false;
    };
  }

  /** Closes the connection; calls under way fail. */
  @Override
  public void close() {
    transport.shutdownNow();
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
