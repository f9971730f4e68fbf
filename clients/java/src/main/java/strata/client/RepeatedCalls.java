package strata.client;

import com.google.protobuf.DescriptorProtos.MethodOptions.IdempotencyLevel;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.protobuf.ProtoMethodDescriptorSupplier;
import java.time.Duration;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Repeats unary calls that the contract declares repeatable, while the gateway is unavailable. Those
 * that have a request id are repeated only with one.
 *
 * <p>The retries of gRPC itself need the names of these methods when a channel is made, and ignore
 * the waiting time that the gateway sends.
 */
final class RepeatedCalls implements ClientInterceptor {
  private static final int MAX_ATTEMPTS = 3;

  private final ScheduledExecutorService timer;

  RepeatedCalls(ScheduledExecutorService timer) {
    this.timer = timer;
  }

  @Override
  public <I, O> ClientCall<I, O> interceptCall(
      MethodDescriptor<I, O> method, CallOptions options, Channel next) {
    return isRepeatable(method)
        ? new RepeatedCall<>(() -> next.newCall(method, options), options)
        : next.newCall(method, options);
  }

  private static boolean isRepeatable(MethodDescriptor<?, ?> method) {
    return method.getType() == MethodDescriptor.MethodType.UNARY
        && method.getSchemaDescriptor() instanceof ProtoMethodDescriptorSupplier contract
        && contract.getMethodDescriptor().getOptions().getIdempotencyLevel()
            != IdempotencyLevel.IDEMPOTENCY_UNKNOWN;
  }

  /** Without its request id, a repeated request would be another one. */
  private static boolean lacksRequestId(Object request) {
    if (!(request instanceof Message message)) {
      return false;
    }
    FieldDescriptor field = message.getDescriptorForType().findFieldByName("request_id");
    return field != null && message.getField(field).equals("");
  }

  /** A call that is attempted a few times within its deadline. */
  private final class RepeatedCall<I, O> extends ClientCall<I, O> {
    private final Supplier<ClientCall<I, O>> open;
    private final CallOptions options;
    private ClientCall<I, O> attempt;
    private ScheduledFuture<?> pause;
    private int attempts;
    private volatile Status cancellation; // Null until the caller cancels.
    private Listener<O> listener;
    private Metadata headers;
    private I request;
    private int requested;
    private boolean halfClosed;

    RepeatedCall(Supplier<ClientCall<I, O>> open, CallOptions options) {
      this.open = open;
      this.options = options;
    }

    @Override
    public synchronized void start(Listener<O> listener, Metadata headers) {
      this.listener = listener;
      this.headers = headers;
      startAttempt();
    }

    private void startAttempt() {
      if (!hasStartedAttempt()) {
        // The caller cancelled when the pause had just ended.
        listener.onClose(cancellation, new Metadata());
      }
    }

    private synchronized boolean hasStartedAttempt() {
      if (cancellation != null) {
        return false;
      }
      attempts++;
      attempt = open.get();
      Metadata copy = new Metadata();
      copy.merge(headers);
      attempt.start(new Attempt(), copy);
      if (requested > 0) {
        attempt.request(requested);
      }
      if (request != null) {
        attempt.sendMessage(request);
      }
      if (halfClosed) {
        attempt.halfClose();
      }
      return true;
    }

    /** Starts the pause before another attempt; returns false if there is no further attempt. */
    private synchronized boolean isRepeatedAfter(Status status, Metadata trailers) {
      if (status.getCode() != Status.Code.UNAVAILABLE
          || cancellation != null
          || attempts == MAX_ATTEMPTS
          || lacksRequestId(request)) {
        return false;
      }
      Duration asked = Failure.of(status.asRuntimeException(trailers)).retryAfter();
      long nanos = BackOff.longer(BackOff.DEFAULT.pause(attempts), asked).toNanos();
      if (options.getDeadline() != null
          && options.getDeadline().timeRemaining(TimeUnit.NANOSECONDS) <= nanos) {
        return false;
      }
      try {
        pause = timer.schedule(this::startAttempt, nanos, TimeUnit.NANOSECONDS);
      } catch (RejectedExecutionException closed) {
        return false;
      }
      return true;
    }

    @Override
    public synchronized void request(int messages) {
      requested += messages;
      attempt.request(messages);
    }

    @Override
    public synchronized void sendMessage(I message) {
      request = message;
      attempt.sendMessage(message);
    }

    @Override
    public synchronized void halfClose() {
      halfClosed = true;
      attempt.halfClose();
    }

    @Override
    public void cancel(String message, Throwable cause) {
      boolean wasPausing;
      synchronized (this) {
        wasPausing = pause != null && pause.cancel(false);
        cancellation = Status.CANCELLED.withDescription(message).withCause(cause);
        attempt.cancel(message, cause);
      }
      if (wasPausing) {
        listener.onClose(cancellation, new Metadata());
      }
    }

    /** A call that is cancelled ends as such, even if its attempt has failed meanwhile. */
    private synchronized Status lastStatus(Status status) {
      boolean isCancelled = cancellation != null && status.getCode() == Status.Code.UNAVAILABLE;
      return isCancelled ? cancellation : status;
    }

    /** Passes on the result of the last attempt. */
    private final class Attempt extends Listener<O> {
      private Metadata received;
      private boolean hasMessage;

      @Override
      public void onHeaders(Metadata headers) {
        received = headers;
      }

      @Override
      public void onMessage(O message) {
        passHeaders();
        hasMessage = true;
        listener.onMessage(message);
      }

      @Override
      public void onClose(Status status, Metadata trailers) {
        if (!hasMessage && isRepeatedAfter(status, trailers)) {
          return;
        }
        passHeaders();
        listener.onClose(hasMessage ? status : lastStatus(status), trailers);
      }

      @Override
      public void onReady() {
        listener.onReady();
      }

      private void passHeaders() {
        if (received != null) {
          listener.onHeaders(received);
          received = null;
        }
      }
    }
  }
}
