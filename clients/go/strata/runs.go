package strata

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	commonv1 "strata.internal/api/common/v1"
	gatewayv1 "strata.internal/api/gateway/v1"
)

const (
	runIDHeader = "X-Run-Id"
	// Maximum number of approval requests that are answered for one message.
	maxAnswers = 100
)

// SendOptions are the options for sending a message; the zero value selects the server's defaults.
type SendOptions struct {
	ConversationID string  // The conversation; empty for the agent's default one.
	MaxSteps       int32   // Maximum number of model calls; 0 for the server's default.
	RequestID      string  // Idempotency key; a repeated request yields the events of its first run.
	Tools          []Tool  // Functions for client tools. The agent needs client tools of these names.
	BackOff        BackOff // Pauses between attempts to reconnect.
	// Edit changes other fields of the request before it is sent.
	Edit func(*gatewayv1.SendMessageRequest)
}

// Send sends a message, and yields each event of its run once, up to the end.
//
// Calls of client tools are answered with the tools of the options, and the events of the
// continuing run follow, so only the last RunFinished is final. The iteration ends at a run that
// waits for anything else.
//
// A broken connection is resumed after the last event; the message takes effect once. Leaving the
// iteration does not stop the run. An error ends the iteration: *UnreachableError if there was no
// contact for too long, otherwise see FailureOf.
func (client *Client) Send(
	ctx context.Context, agentID, text string, options SendOptions,
) iter.Seq2[*commonv1.RunEvent, error] {
	part := &commonv1.Part{Content: &commonv1.Part_Text{Text: &commonv1.TextPart{Text: text}}}
	message := &commonv1.MessageInput{Role: commonv1.Role_ROLE_USER, Parts: []*commonv1.Part{part}}
	request := &gatewayv1.SendMessageRequest{
		RequestId:      options.RequestID,
		AgentId:        agentID,
		ConversationId: options.ConversationID,
		Messages:       []*commonv1.MessageInput{message},
		MaxSteps:       options.MaxSteps,
	}
	if options.Edit != nil {
		options.Edit(request)
	}
	if request.RequestId == "" {
		request.RequestId = NewRequestID()
	}
	return func(yield func(*commonv1.RunEvent, error) bool) {
		// Otherwise it would fail like a broken connection, and be repeated.
		if _, err := proto.Marshal(request); err != nil {
			yield(nil, connect.NewError(connect.CodeInvalidArgument, err))
			return
		}
		follower := client.sending(request)
		for range maxAnswers {
			var asked *commonv1.ApprovalRequestPart
			for event, err := range follower.events(ctx, options.BackOff) {
				if approval := event.GetApprovalRequested(); approval != nil {
					asked = approval.GetApproval()
				}
				if !yield(event, err) || err != nil {
					return
				}
			}
			if asked == nil || !covers(options.Tools, asked) {
				return
			}
			follower = client.responding(&gatewayv1.RespondToApprovalRequest{
				RequestId:         NewRequestID(),
				ApprovalId:        asked.GetApprovalId(),
				Decisions:         decide(ctx, options.Tools, asked),
				MaxSteps:          request.MaxSteps,
				SendMessageAsText: request.SendMessageAsText,
			})
		}
	}
}

// Ask sends a message, and returns the reply: the texts of the agent, joined by empty lines. The
// error is a *RunFailedError if the run failed, was cancelled, or waits for an approval.
func (client *Client) Ask(
	ctx context.Context, agentID, text string, options SendOptions,
) (string, error) {
	var texts []string
	var last *commonv1.RunEvent
	for event, err := range client.Send(ctx, agentID, text, options) {
		if err != nil {
			return "", err
		}
		last = event
		message := event.GetMessageStored().GetMessage()
		if message.GetRole() == commonv1.Role_ROLE_ASSISTANT && TextOf(message) != "" {
			texts = append(texts, TextOf(message))
		}
	}
	if finished := last.GetRunFinished(); isWithoutReply(finished) {
		return "", &RunFailedError{RunID: last.GetRunId(), Finished: finished}
	}
	return strings.Join(texts, "\n\n"), nil
}

// Resume yields the events of a run after a sequence number, up to its end, across lost
// connections. The program must have kept the id of the run and the sequence number of the last
// event that it received.
func (client *Client) Resume(
	ctx context.Context, runID string, afterSequence int64,
) iter.Seq2[*commonv1.RunEvent, error] {
	follower := &follower{client: client, runID: runID, sequence: afterSequence}
	return follower.events(ctx, BackOff{})
}

// TextOf returns the text of a message, without reasoning and calls.
func TextOf(message *commonv1.Message) string {
	var text strings.Builder
	for _, part := range message.GetParts() {
		text.WriteString(part.GetText().GetText())
	}
	return text.String()
}

// NewRequestID returns a new idempotency key, so that a repeated call takes effect once.
func NewRequestID() string { return "go-" + rand.Text() }

func isWithoutReply(finished *commonv1.RunFinished) bool {
	return finished.GetError() != nil ||
		finished.GetStopReason() == commonv1.StopReason_STOP_REASON_CANCELLED ||
		finished.GetStopReason() == commonv1.StopReason_STOP_REASON_REQUIRES_APPROVAL
}

// eventStream is the stream of a call that returns the events of a run.
type eventStream interface {
	Receive() bool
	Event() *commonv1.RunEvent
	RunID() string
	Err() error
	Close() error
}

// typedStream is an eventStream of one call.
type typedStream[R any, P interface {
	*R
	GetEvent() *commonv1.RunEvent
}] struct {
	*connect.ServerStreamForClient[R]
}

func (stream typedStream[R, P]) Event() *commonv1.RunEvent { return P(stream.Msg()).GetEvent() }

func (stream typedStream[R, P]) RunID() string { return stream.ResponseHeader().Get(runIDHeader) }

// follower follows one run to its end, across lost connections.
type follower struct {
	client   *Client
	start    func(context.Context) (eventStream, error) // Nil if the run is known from the start.
	resumed  gatewayv1.StreamRunRequest                 // Options for the events of a resumed stream.
	runID    string                                     // Empty until it is known.
	sequence int64                                      // Of the last stored event that arrived.

	hasAllEvents bool // The run ended with the last event that arrived, or before it was resumed.
}

func (client *Client) sending(request *gatewayv1.SendMessageRequest) *follower {
	sent := &follower{client: client, start: func(ctx context.Context) (eventStream, error) {
		stream, err := client.Runs.SendMessage(ctx, request)
		return typedStream[gatewayv1.SendMessageResponse, *gatewayv1.SendMessageResponse]{stream}, err
	}}
	sent.resumed.StreamTokens = request.StreamTokens
	sent.resumed.SendMessageAsText = request.SendMessageAsText
	return sent
}

func (client *Client) responding(request *gatewayv1.RespondToApprovalRequest) *follower {
	answered := &follower{client: client, start: func(ctx context.Context) (eventStream, error) {
		stream, err := client.Runs.RespondToApproval(ctx, request)
		return typedStream[gatewayv1.RespondToApprovalResponse, *gatewayv1.RespondToApprovalResponse]{stream}, err
	}}
	answered.resumed.SendMessageAsText = request.SendMessageAsText
	return answered
}

// events yields each event of the run once, up to its end.
func (follower *follower) events(
	ctx context.Context, backOff BackOff,
) iter.Seq2[*commonv1.RunEvent, error] {
	return func(yield func(*commonv1.RunEvent, error) bool) {
		pauses := pauses{BackOff: backOff.withDefaults()}
		var lostAt time.Time
		for {
			beganAt := time.Now()
			failed := errors.New("the stream ended before the run ended")
			for event, err := range follower.attempt(ctx) {
				if err != nil {
					failed = err
					break
				}
				lostAt = time.Time{}
				pauses.reset()
				if !yield(event, nil) || event.GetRunFinished() != nil {
					return
				}
			}
			if follower.hasAllEvents {
				return
			}
			failure := FailureOf(failed)
			if ctx.Err() != nil {
				failed = ctx.Err()
			}
			if ctx.Err() != nil || !failure.mayBeRepeated() {
				yield(nil, failed)
				return
			}
			if lostAt.IsZero() || time.Since(beganAt) > pauses.Contact {
				lostAt = time.Now()
			}
			if time.Since(lostAt) > pauses.Patience {
				yield(nil, &UnreachableError{RunID: follower.runID, Cause: failed})
				return
			}
			if err := pause(ctx, max(pauses.next(), failure.RetryAfter)); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// attempt yields the new events of one connection.
func (follower *follower) attempt(ctx context.Context) iter.Seq2[*commonv1.RunEvent, error] {
	return func(yield func(*commonv1.RunEvent, error) bool) {
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		isResumed, isEmpty := follower.runID != "", true
		stream, err := follower.open(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		defer stream.Close()
		follower.setRunID(stream.RunID())
		for stream.Receive() {
			isEmpty = false
			if event := stream.Event(); follower.isNew(event) && !yield(event, nil) {
				return
			}
		}
		if err := stream.Err(); err != nil {
			yield(nil, err)
			return
		}
		// The gateway ends a stream without an event if the run ended before the sequence.
		follower.hasAllEvents = isResumed && isEmpty
	}
}

func (follower *follower) open(ctx context.Context) (eventStream, error) {
	if follower.runID == "" {
		return follower.start(ctx)
	}
	stream, err := follower.client.Runs.StreamRun(ctx, &gatewayv1.StreamRunRequest{
		RunId:             follower.runID,
		AfterSequence:     follower.sequence,
		StreamTokens:      follower.resumed.StreamTokens,
		SendMessageAsText: follower.resumed.SendMessageAsText,
	})
	return typedStream[gatewayv1.StreamRunResponse, *gatewayv1.StreamRunResponse]{stream}, err
}

func (follower *follower) isNew(event *commonv1.RunEvent) bool {
	follower.setRunID(event.GetRunId())
	switch event.GetEvent().(type) {
	case *commonv1.RunEvent_TextDelta, *commonv1.RunEvent_ReasoningDelta,
		*commonv1.RunEvent_ToolCallDelta, *commonv1.RunEvent_TextSnapshot:
		return true // These are not stored, so they have no position in the log of the run.
	}
	isNew := event.GetSequence() > follower.sequence
	follower.sequence = max(follower.sequence, event.GetSequence())
	return isNew
}

func (follower *follower) setRunID(runID string) {
	if follower.runID == "" {
		follower.runID = runID
	}
}
