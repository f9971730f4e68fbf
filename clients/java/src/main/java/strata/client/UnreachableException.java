package strata.client;

/** There was no contact with the gateway for too long; the cause is the last failure. */
public final class UnreachableException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final String runId;

  UnreachableException(String runId, Throwable cause) {
    super(
        runId.isEmpty()
            ? "The gateway does not answer; the message was not accepted."
            : "The gateway does not answer any more; the run "
                + runId
                + " continues when it is back.",
        cause);
    this.runId = runId;
  }

  /** Returns the id of the run, which continues; empty if the message was not accepted. */
  public String runId() {
    return runId;
  }
}
