package strata

import (
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	commonv1 "strata.internal/api/common/v1"
)

// Failure is what the gateway says about a call that it refused.
type Failure struct {
	Code       connect.Code      // Status of the call.
	Message    string            // A sentence for people.
	Reason     string            // Name of the ErrorReason; empty if the gateway did not answer.
	Metadata   map[string]string // Values that belong to the reason.
	Violations []Violation       // Fields of the request that are wrong, and why.
	RetryAfter time.Duration     // When another attempt makes sense; zero if the gateway does not say.
}

// Violation is a field of a request that is wrong.
type Violation struct {
	Field       string
	Description string
}

// FailureOf returns what an error of a call says, with the details that the gateway sent.
func FailureOf(err error) Failure {
	failure := Failure{Code: connect.CodeOf(err), Message: err.Error()}
	var refused *connect.Error
	if !errors.As(err, &refused) {
		return failure
	}
	failure.Message = refused.Message()
	for _, detail := range refused.Details() {
		value, err := detail.Value()
		if err != nil {
			continue // Of a type that this program does not know.
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

// mayBeRepeated says whether the cause is the connection or an overload, and not a refusal.
func (failure Failure) mayBeRepeated() bool {
	switch failure.Code {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return true
	case connect.CodeResourceExhausted:
		return failure.Reason == "OVERLOADED"
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeAborted, connect.CodeInvalidArgument,
		connect.CodeDataLoss:
		// A connection that broke, perhaps within a frame; an error of the gateway has a reason.
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

// UnreachableError says that there was no contact with the gateway for too long.
type UnreachableError struct {
	RunID string // The run, which continues; empty if the message was not accepted.
	Cause error  // The last failure.
}

func (unreachable *UnreachableError) Error() string {
	if unreachable.RunID == "" {
		return "the gateway does not answer; the message was not accepted"
	}
	return fmt.Sprintf("the gateway does not answer any more; the run %s continues when it is back",
		unreachable.RunID)
}

// Unwrap returns the last failure.
func (unreachable *UnreachableError) Unwrap() error { return unreachable.Cause }
