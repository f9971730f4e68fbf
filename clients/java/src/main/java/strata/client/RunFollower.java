package strata.client;

import io.grpc.Context;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.Iterator;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import strata.api.common.v1.RunEvent;
import strata.api.gateway.v1.RunServiceGrpc.RunServiceBlockingStub;
import strata.api.gateway.v1.StreamRunRequest;

/** Follows one run to its end, across lost connections. */
final class RunFollower implements AutoCloseable {
  private static final Metadata.Key<String> RUN_ID =
      Metadata.Key.of("x-run-id", Metadata.ASCII_STRING_MARSHALLER);

  private final RunServiceBlockingStub runs;
  private final Function<RunServiceBlockingStub, Iterator<RunEvent>> start;
  private final StreamRunRequest resumed;
  private final BackOff backOff;
  private String runId;
  private long sequence;
  private boolean ended;
  private Attempt attempt;
  private int failures;
  private long lostNanos;

  /**
   * Follows a run from its beginning, or a known one after a sequence.
   *
   * @param runs Stub of the service.
   * @param start Starts the run by a request that may be repeated; not called for a known run.
   * @param resumed Options for the events of a resumed stream, with the run if it is known.
   * @param backOff Pauses between attempts to reconnect.
   */
  RunFollower(
      RunServiceBlockingStub runs,
      Function<RunServiceBlockingStub, Iterator<RunEvent>> start,
      StreamRunRequest resumed,
      BackOff backOff) {
    this.runs = runs;
    this.start = start;
    this.resumed = resumed;
    this.backOff = backOff;
    this.runId = resumed.getRunId();
    this.sequence = resumed.getAfterSequence();
  }

  /**
   * Returns the next event of the run, each once; null after its end.
   *
   * @throws UnreachableException The gateway could not be reached for too long.
   * @throws StatusRuntimeException The gateway refused, or the thread was interrupted.
   */
  RunEvent next() {
    while (!ended) {
      StatusRuntimeException failure;
      try {
        RunEvent event = nextOfAttempt();
        if (event != null) {
          failures = 0;
          ended = event.hasRunFinished();
          return event;
        }
        if (attempt.isResumed && attempt.isEmpty) {
          // The gateway ends a stream without an event if the run ended before the sequence.
          ended = true;
          break;
        }
        failure =
            Status.UNAVAILABLE
                .withDescription("The stream ended before the run ended.")
                .asRuntimeException();
      } catch (StatusRuntimeException error) {
        failure = error;
      }
      waitAfter(failure);
    }
    awaitCompletion();
    return null;
  }

  /** Ends the stream; the run continues. */
  @Override
  public void close() {
    ended = true;
    closeAttempt();
  }

  private RunEvent nextOfAttempt() {
    if (attempt == null) {
      attempt = new Attempt();
    }
    try {
      while (attempt.events.hasNext()) {
        RunEvent event = attempt.events.next();
        attempt.isEmpty = false;
        if (isNew(event)) {
          return event;
        }
      }
      return null;
    } finally {
      attempt.runId().ifPresent(this::setRunId);
    }
  }

  private void waitAfter(StatusRuntimeException failure) {
    long now = System.nanoTime();
    long openedNanos = attempt == null ? now : attempt.openedNanos;
    closeAttempt();
    Failure details = Failure.of(failure);
    if (Thread.currentThread().isInterrupted() || !details.mayBeRepeated()) {
      ended = true;
      throw failure;
    }
    failures++;
    if (failures == 1 || now - openedNanos > backOff.contact().toNanos()) {
      lostNanos = now;
    }
    if (now - lostNanos > backOff.patience().toNanos()) {
      ended = true;
      throw new UnreachableException(runId, failure);
    }
    Duration pause = BackOff.longer(backOff.pause(failures), details.retryAfter());
    try {
      Thread.sleep(pause.toMillis());
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      ended = true;
      throw failure;
    }
  }

  /** Lets the server end the stream, which would otherwise count the call as cancelled. */
  private void awaitCompletion() {
    if (attempt == null) {
      return;
    }
    try {
      while (attempt.events.hasNext()) {
        attempt.events.next();
      }
    } catch (StatusRuntimeException late) {
      // The run has ended, so an error of its stream does not matter.
      return;
    } finally {
      closeAttempt();
    }
  }

  private boolean isNew(RunEvent event) {
    setRunId(event.getRunId());
    switch (event.getEventCase()) {
      case TEXT_DELTA, REASONING_DELTA, TOOL_CALL_DELTA, TEXT_SNAPSHOT -> {
        return true; // These are not stored, so they have no position in the log of the run.
      }
      default -> {
        boolean isNew = event.getSequence() > sequence;
        sequence = Math.max(sequence, event.getSequence());
        return isNew;
      }
    }
  }

  private void setRunId(String id) {
    if (runId.isEmpty()) {
      runId = id;
    }
  }

  private void closeAttempt() {
    if (attempt != null) {
      attempt.context.cancel(null);
      attempt = null;
    }
  }

  /** The events of one connection. */
  private final class Attempt {
    final long openedNanos = System.nanoTime();
    final boolean isResumed = !runId.isEmpty();
    boolean isEmpty = true;
    final Context.CancellableContext context = Context.current().withCancellation();
    final Iterator<RunEvent> events;
    private final AtomicReference<Metadata> headers = new AtomicReference<>();

    Attempt() {
      RunServiceBlockingStub stub =
          runs.withInterceptors(
              MetadataUtils.newCaptureMetadataInterceptor(headers, new AtomicReference<>()));
      Context before = context.attach();
      try {
        events = runId.isEmpty() ? start.apply(stub) : resume(stub);
      } finally {
        context.detach(before);
      }
    }

    private Iterator<RunEvent> resume(RunServiceBlockingStub stub) {
      StreamRunRequest request =
          resumed.toBuilder().setRunId(runId).setAfterSequence(sequence).build();
      return RunEvents.map(stub.streamRun(request), response -> response.getEvent());
    }

    Optional<String> runId() {
      return Optional.ofNullable(headers.get()).map(metadata -> metadata.get(RUN_ID));
    }
  }
}
