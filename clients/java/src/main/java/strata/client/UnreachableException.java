package strata.client;

/** Thrown after too long a time without contact with the gateway; the cause is the last failure. */
public final class UnreachableException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final String runId;

  UnreachableException(String runId, Throwable cause) {
    super(
        runId.isEmpty()
            ? "The gateway does not answer; the message was not accepted."
            : "The gateway no longer answers. The run continues when it is back; see: "
                + "strata runs show "
                + runId,
        cause);
    this.runId = runId;
  }

  /** Returns the id of the run, which continues; empty if the message was not accepted. */
  public String runId() {
    return runId;
  }
}
