package strata.client;

import java.time.Duration;

/**
 * Pauses between attempts to reconnect.
 *
 * @param first Pause before the first attempt; it doubles with each further attempt.
 * @param longest Longest pause.
 * @param patience Time without contact after which a call fails.
 * @param contact A stream that was open for this time counts as contact, even without events.
 */
public record BackOff(Duration first, Duration longest, Duration patience, Duration contact) {
  /** The default values: 200 ms, 3 s, 2 minutes, 10 s. */
  public static final BackOff DEFAULT =
      new BackOff(
          Duration.ofMillis(200),
          Duration.ofSeconds(3),
          Duration.ofMinutes(2),
          Duration.ofSeconds(10));

  /** Returns the pause after a number of failed attempts, from 1. */
  Duration pause(int failures) {
    int doubled = Math.min(failures - 1, 20);
    return shorter(first.multipliedBy(1L << doubled), longest);
  }

  static Duration longer(Duration one, Duration other) {
    return one.compareTo(other) > 0 ? one : other;
  }

  private static Duration shorter(Duration one, Duration other) {
    return one.compareTo(other) < 0 ? one : other;
  }
}
