package strata

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	commonv1 "strata.internal/api/common/v1"
)

// Failure contains the details of a failed call that the gateway sent.
type Failure struct {
	Code       connect.Code      // Status of the call.
	Message    string            // Explanation for people.
	Reason     string            // Name of the ErrorReason; empty if the gateway did not answer.
	Metadata   map[string]string // Values that belong to the reason.
	Violations []Violation       // Invalid fields of the request, with the reason.
	RetryAfter time.Duration     // Time to wait before another attempt; zero if not sent.
}

// Violation is an invalid field of a request.
type Violation struct {
	Field       string
	Description string
}

// FailureOf returns the details of the error of a call.
func FailureOf(err error) Failure {
	failure := Failure{Code: connect.CodeOf(err), Message: err.Error()}
	var refused *connect.Error
	if !errors.As(err, &refused) {
		// The context of the caller ended during a pause, for example.
		switch {
		case errors.Is(err, context.Canceled):
			failure.Code = connect.CodeCanceled
		case errors.Is(err, context.DeadlineExceeded):
			failure.Code = connect.CodeDeadlineExceeded
		}
		return failure
	}
	failure.Message = refused.Message()
	for _, detail := range refused.Details() {
		value, err := detail.Value()
		if err != nil {
			continue // The type of the detail is unknown to this program.
		}
		switch value := value.(type) {
		case *errdetails.ErrorInfo:
			failure.Reason, failure.Metadata = value.GetReason(), value.GetMetadata()
		case *errdetails.RetryInfo:
			failure.RetryAfter = value.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			for _, violation := range value.GetFieldViolations() {
				failure.Violations = append(failure.Violations,
					Violation{violation.GetField(), violation.GetDescription()})
			}
		}
	}
	return failure
}

// mayBeRepeated reports whether the cause is the connection or an overload, and not a refusal.
func (failure Failure) mayBeRepeated() bool {
	switch failure.Code {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return true
	case connect.CodeResourceExhausted:
		return failure.Reason == "OVERLOADED"
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeAborted, connect.CodeInvalidArgument,
		connect.CodeDataLoss:
		// A connection that broke, perhaps within a frame: errors of the gateway have a reason.
		return failure.Reason == ""
	default:
		return false
	}
}

// RunFailedError is the error of a run that ended without a reply.
type RunFailedError struct {
	RunID    string
	Finished *commonv1.RunFinished // How it ended.
}

func (failed *RunFailedError) Error() string {
	if message := failed.Finished.GetError().GetMessage(); message != "" {
		return message
	}
	return fmt.Sprintf("the run ended with %s", failed.Finished.GetStopReason())
}

// UnreachableError is returned after too long a time without contact with the gateway.
type UnreachableError struct {
	RunID string // The run, which continues; empty if the message was not accepted.
	Cause error  // The last failure.
}

func (unreachable *UnreachableError) Error() string {
	if unreachable.RunID == "" {
		return "the gateway does not answer; the message was not accepted"
	}
	return fmt.Sprintf("the gateway no longer answers; the run continues when it is back, see:"+
		" strata runs show %s", unreachable.RunID)
}

// Unwrap returns the last failure.
func (unreachable *UnreachableError) Unwrap() error { return unreachable.Cause }
