/** Pauses between attempts to reconnect, in milliseconds. */
export interface BackOff {
  /** Pause before the first attempt; it doubles with each further attempt. */
  firstMs: number;
  /** Longest pause. */
  longestMs: number;
  /** Time without contact after which a call fails. */
  patienceMs: number;
  /** A stream that stayed open for this time counts as contact, even without events. */
  contactMs: number;
}

export const DEFAULT_BACK_OFF: BackOff = {
  firstMs: 200,
  longestMs: 3_000,
  patienceMs: 120_000,
  contactMs: 10_000,
};

/** Successive pauses; each is twice as long as the one before. */
export interface Pauses {
  /** Returns the next pause in milliseconds. */
  next(): number;
  /** Starts with the first pause again. */
  reset(): void;
}

/** Returns pauses from `firstMs` to `longestMs`. */
export function growingPauses(
  { firstMs, longestMs }: Pick<BackOff, "firstMs" | "longestMs"> = DEFAULT_BACK_OFF,
): Pauses {
  let pauseMs = firstMs;
  return {
    next() {
      const current = pauseMs;
      pauseMs = Math.min(pauseMs * 2, longestMs);
      return current;
    },
    reset() {
      pauseMs = firstMs;
    },
  };
}

/** Waits; throws the reason of the signal if it is aborted. */
export async function abortableSleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", abort, { once: true });
  });
}
