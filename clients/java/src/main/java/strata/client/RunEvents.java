package strata.client;

import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.function.Function;
import strata.api.common.v1.ApprovalRequestPart;
import strata.api.common.v1.RunEvent;

/**
 * The events of runs. Each stored event is returned once; events are received during the iteration.
 *
 * <p>The run continues if this is closed or the iteration is left. Iteration throws
 * {@link UnreachableException} if the gateway could not be reached for too long, and {@link
 * io.grpc.StatusRuntimeException} if the gateway refuses; see {@link Failure#of}.
 */
public final class RunEvents implements Iterator<RunEvent>, Iterable<RunEvent>, AutoCloseable {
  // Maximum number of approval requests that are answered for one message.
  private static final int MAX_ANSWERS = 100;

  private final List<ClientTool> tools;
  private final Function<ApprovalRequestPart, RunFollower> answer;
  private RunFollower follower;
  private ApprovalRequestPart asked;
  private RunEvent next;
  private int answers;

  /**
   * The events of a run, and of those that continue it.
   *
   * @param first Follows the run.
   * @param tools Client tools that answer the calls of the run.
   * @param answer Sends the answer to a request that the tools cover.
   */
  RunEvents(
      RunFollower first,
      List<ClientTool> tools,
      Function<ApprovalRequestPart, RunFollower> answer) {
    this.follower = first;
    this.tools = tools;
    this.answer = answer;
  }

  @Override
  public boolean hasNext() {
    while (next == null && follower != null) {
      next = follower.next();
      if (next == null) {
        follower = continued();
      } else if (next.hasApprovalRequested()) {
        asked = next.getApprovalRequested().getApproval();
      }
    }
    return next != null;
  }

  @Override
  public RunEvent next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    RunEvent event = next;
    next = null;
    return event;
  }

  /** Returns this iterator: the events can be iterated once. */
  @Override
  public Iterator<RunEvent> iterator() {
    return this;
  }

  @Override
  public void close() {
    if (follower != null) {
      follower.close();
      follower = null;
    }
  }

  private RunFollower continued() {
    ApprovalRequestPart request = asked;
    asked = null;
    if (request == null || answers == MAX_ANSWERS || !ClientTool.covers(tools, request)) {
      return null;
    }
    answers++;
    return answer.apply(request);
  }

  static <T> Iterator<RunEvent> map(Iterator<T> responses, Function<T, RunEvent> event) {
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return responses.hasNext();
      }

      @Override
      public RunEvent next() {
        return event.apply(responses.next());
      }
    };
  }
}
