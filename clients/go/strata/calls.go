package strata

import (
	"context"
	"time"

	"connectrpc.com/connect"
)

const maxAttempts = 3

// gatewayCalls sends the API key, limits the time of unary calls, and, while the gateway is
// unavailable, repeats the calls that the contract declares repeatable. Those that have a request id
// are repeated only with one.
type gatewayCalls struct {
	key     string
	timeout time.Duration
}

func (calls *gatewayCalls) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		calls.authorize(request.Header())
		ctx, cancel := context.WithTimeout(ctx, calls.timeout)
		defer cancel()
		pauses := pauses{BackOff: defaultBackOff}
		for attempt := 1; ; attempt++ {
			response, err := next(ctx, request)
			if err == nil || attempt == maxAttempts || !isRepeatable(request) ||
				connect.CodeOf(err) != connect.CodeUnavailable {
				return response, err
			}
			if pause(ctx, max(pauses.next(), FailureOf(err).RetryAfter)) != nil {
				return nil, err
			}
		}
	}
}

func (calls *gatewayCalls) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		stream := next(ctx, spec)
		calls.authorize(stream.RequestHeader())
		return stream
	}
}

func (calls *gatewayCalls) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (calls *gatewayCalls) authorize(header interface {
	Get(string) string
	Set(string, string)
}) {
	if header.Get("Authorization") == "" {
		header.Set("Authorization", "Bearer "+calls.key)
	}
}

// Without its request id, a repeated request would be another one.
func isRepeatable(request connect.AnyRequest) bool {
	identified, ok := request.Any().(interface{ GetRequestId() string })
	if ok && identified.GetRequestId() == "" {
		return false
	}
	spec := request.Spec()
	return spec.IdempotencyLevel == connect.IdempotencyNoSideEffects ||
		spec.IdempotencyLevel == connect.IdempotencyIdempotent
}

// BackOff holds the pauses between attempts to reconnect; zero values select the defaults.
type BackOff struct {
	First    time.Duration // Pause before the first attempt, 200 ms; it doubles with each further attempt.
	Longest  time.Duration // Longest pause, 3 s.
	Patience time.Duration // Time without contact after which a call fails, 2 min.
	Contact  time.Duration // A stream that was open for this time counts as contact, 10 s.
}

var defaultBackOff = BackOff{
	First:    200 * time.Millisecond,
	Longest:  3 * time.Second,
	Patience: 2 * time.Minute,
	Contact:  10 * time.Second,
}

func (backOff BackOff) withDefaults() BackOff {
	return BackOff{
		First:    firstNotZero(backOff.First, defaultBackOff.First),
		Longest:  firstNotZero(backOff.Longest, defaultBackOff.Longest),
		Patience: firstNotZero(backOff.Patience, defaultBackOff.Patience),
		Contact:  firstNotZero(backOff.Contact, defaultBackOff.Contact),
	}
}

func firstNotZero(value, fallback time.Duration) time.Duration {
	if value == 0 {
		return fallback
	}
	return value
}

// pauses are the successive pauses; each is twice as long as the one before.
type pauses struct {
	BackOff
	last time.Duration
}

func (pauses *pauses) next() time.Duration {
	pauses.last = min(max(pauses.last*2, pauses.First), pauses.Longest)
	return pauses.last
}

func (pauses *pauses) reset() { pauses.last = 0 }

// pause waits; it returns the error of the context if the context ends first.
func pause(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
