package strata.client;

import strata.api.common.v1.RunFinished;

/** A run ended without a reply: it failed, was cancelled, or waits for an approval. */
public final class RunFailedException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final String runId;
  private final RunFinished finished;

  RunFailedException(String runId, RunFinished finished) {
    super(
        finished.getError().getMessage().isEmpty()
            ? "The run ended with " + finished.getStopReason() + "."
            : finished.getError().getMessage());
    this.runId = runId;
    this.finished = finished;
  }

  /** Returns the id of the run. */
  public String runId() {
    return runId;
  }

  /** Returns how it ended; the reason of its error names the cause of a failure. */
  public RunFinished finished() {
    return finished;
  }
}
