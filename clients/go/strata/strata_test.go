package strata_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	agentloopv1 "strata.internal/api/agent_loop/v1"
	"strata.internal/api/agent_loop/v1/agentloopv1connect"
	commonv1 "strata.internal/api/common/v1"
	gatewayv1 "strata.internal/api/gateway/v1"
	"strata.internal/api/gateway/v1/gatewayv1connect"
	"strata.internal/strata"
)

const runID = "run-1"

var backOff = strata.BackOff{First: time.Millisecond, Longest: time.Millisecond}

type agents struct {
	agentloopv1connect.UnimplementedAgentServiceHandler
	getAgent func(context.Context) (*agentloopv1.GetAgentResponse, error)
	calls    int
}

func (agents *agents) GetAgent(
	ctx context.Context, _ *agentloopv1.GetAgentRequest,
) (*agentloopv1.GetAgentResponse, error) {
	agents.calls++
	return agents.getAgent(ctx)
}

// runs sends the events of one attempt after the other; a nil event breaks the stream.
type runs struct {
	gatewayv1connect.UnimplementedRunServiceHandler
	sent     [][]*commonv1.RunEvent
	resumed  [][]*commonv1.RunEvent
	answered []*commonv1.RunEvent
	requests []*gatewayv1.SendMessageRequest
	follows  []*gatewayv1.StreamRunRequest
	answers  []*gatewayv1.RespondToApprovalRequest
}

func send(events []*commonv1.RunEvent, send func(*commonv1.RunEvent) error) error {
	for _, event := range events {
		if event == nil {
			return connect.NewError(connect.CodeUnavailable, errors.New("the connection broke"))
		}
		if err := send(event); err != nil {
			return err
		}
	}
	return nil
}

func (runs *runs) SendMessage(
	_ context.Context, request *gatewayv1.SendMessageRequest,
	stream *connect.ServerStream[gatewayv1.SendMessageResponse],
) error {
	runs.requests = append(runs.requests, request)
	return send(runs.sent[len(runs.requests)-1], func(event *commonv1.RunEvent) error {
		return stream.Send(&gatewayv1.SendMessageResponse{Event: event})
	})
}

func (runs *runs) StreamRun(
	_ context.Context, request *gatewayv1.StreamRunRequest,
	stream *connect.ServerStream[gatewayv1.StreamRunResponse],
) error {
	runs.follows = append(runs.follows, request)
	attempt := min(len(runs.follows), len(runs.resumed)) - 1
	return send(runs.resumed[attempt], func(event *commonv1.RunEvent) error {
		return stream.Send(&gatewayv1.StreamRunResponse{Event: event})
	})
}

func (runs *runs) RespondToApproval(
	_ context.Context, request *gatewayv1.RespondToApprovalRequest,
	stream *connect.ServerStream[gatewayv1.RespondToApprovalResponse],
) error {
	runs.answers = append(runs.answers, request)
	return send(runs.answered, func(event *commonv1.RunEvent) error {
		return stream.Send(&gatewayv1.RespondToApprovalResponse{Event: event})
	})
}

// clientOf returns a client of services on loopback.
func clientOf(t *testing.T, agents *agents, runs *runs) *strata.Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(agentloopv1connect.NewAgentServiceHandler(agents))
	mux.Handle(gatewayv1connect.NewRunServiceHandler(runs))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	client, err := strata.Connect(strata.Options{
		Address: server.Listener.Addr().String(),
		APIKey:  "key\n", // As it is read from a file.
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func event(sequence int64) *commonv1.RunEvent {
	return &commonv1.RunEvent{RunId: runID, Sequence: sequence}
}

func started(sequence int64) *commonv1.RunEvent {
	started := event(sequence)
	started.Event = &commonv1.RunEvent_RunStarted{RunStarted: &commonv1.RunStarted{}}
	return started
}

func delta(text string) *commonv1.RunEvent {
	delta := event(0)
	delta.Event = &commonv1.RunEvent_TextDelta{TextDelta: &commonv1.TextDelta{Text: text}}
	return delta
}

func stored(sequence int64, role commonv1.Role, text string) *commonv1.RunEvent {
	part := &commonv1.Part{Content: &commonv1.Part_Text{Text: &commonv1.TextPart{Text: text}}}
	stored := event(sequence)
	stored.Event = &commonv1.RunEvent_MessageStored{MessageStored: &commonv1.MessageStored{
		Message: &commonv1.Message{Role: role, Parts: []*commonv1.Part{part}},
	}}
	return stored
}

func finished(sequence int64, reason commonv1.StopReason) *commonv1.RunEvent {
	finished := event(sequence)
	finished.Event = &commonv1.RunEvent_RunFinished{
		RunFinished: &commonv1.RunFinished{StopReason: reason},
	}
	return finished
}

func asked(sequence int64) *commonv1.RunEvent {
	asked := event(sequence)
	asked.Event = &commonv1.RunEvent_ApprovalRequested{ApprovalRequested: &commonv1.ApprovalRequested{
		Approval: &commonv1.ApprovalRequestPart{
			ApprovalId: "approval-1",
			ToolCalls:  []*commonv1.ToolCallPart{{ToolCallId: "call-1", Name: "look", Arguments: `{"at": "a"}`}},
			Bindings: []*commonv1.ApprovalBinding{
				{ToolCallId: "call-1", ArgumentsHash: "hash", ByClient: true},
			},
		},
	}}
	return asked
}

func look(run func(struct{ At string }) (any, error)) strata.Tool {
	return strata.NewTool("look", "Looks.", map[string]any{"type": "object"},
		func(_ context.Context, arguments struct{ At string }) (any, error) { return run(arguments) })
}

func TestCallsCarryTheKeyAndRepeatableOnesAreMadeAgain(t *testing.T) {
	agents := &agents{}
	agents.getAgent = func(ctx context.Context) (*agentloopv1.GetAgentResponse, error) {
		info, _ := connect.CallInfoForHandlerContext(ctx)
		if key := info.RequestHeader().Get("Authorization"); key != "Bearer key" {
			t.Errorf("the key is %q", key)
		}
		if agents.calls < 3 {
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("away"))
		}
		return &agentloopv1.GetAgentResponse{Agent: &agentloopv1.Agent{Name: "ann"}}, nil
	}
	client := clientOf(t, agents, &runs{})
	response, err := client.Agents.GetAgent(t.Context(), &agentloopv1.GetAgentRequest{Name: "ann"})
	if err != nil || response.Agent.Name != "ann" || agents.calls != 3 {
		t.Error(response, err, agents.calls)
	}
}

func TestRefusedCallsAreMadeOnceAndSayWhy(t *testing.T) {
	agents := &agents{getAgent: func(context.Context) (*agentloopv1.GetAgentResponse, error) {
		refused := connect.NewError(connect.CodeInvalidArgument, errors.New("no"))
		info, _ := connect.NewErrorDetail(&errdetails.ErrorInfo{
			Reason: "INVALID_FIELD", Metadata: map[string]string{"a": "b"},
		})
		request, _ := connect.NewErrorDetail(&errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "name", Description: "is bad"}},
		})
		retry, _ := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
		refused.AddDetail(info)
		refused.AddDetail(request)
		refused.AddDetail(retry)
		return nil, refused
	}}
	_, err := clientOf(t, agents, &runs{}).Agents.GetAgent(t.Context(), &agentloopv1.GetAgentRequest{})
	failure := strata.FailureOf(err)
	if failure.Code != connect.CodeInvalidArgument || failure.Reason != "INVALID_FIELD" ||
		failure.Metadata["a"] != "b" || failure.RetryAfter != time.Second ||
		!slices.Equal(failure.Violations, []strata.Violation{{Field: "name", Description: "is bad"}}) {
		t.Error(failure)
	}
	if agents.calls != 1 {
		t.Error(agents.calls)
	}
}

func TestAMessageIsSentAgainUntilTheRunIsKnownAndThenResumed(t *testing.T) {
	runs := &runs{
		sent:    [][]*commonv1.RunEvent{{nil}, {started(1), delta("He"), nil}},
		resumed: [][]*commonv1.RunEvent{{started(1), delta("llo"), finished(2, 1)}},
	}
	var sequences []int64
	options := strata.SendOptions{BackOff: backOff}
	for event, err := range clientOf(t, &agents{}, runs).Send(t.Context(), "agent-1", "Hi.", options) {
		if err != nil {
			t.Fatal(err)
		}
		sequences = append(sequences, event.Sequence)
	}
	if !slices.Equal(sequences, []int64{1, 0, 0, 2}) {
		t.Error(sequences)
	}
	if runs.requests[0].RequestId == "" || runs.requests[0].RequestId != runs.requests[1].RequestId {
		t.Error(runs.requests)
	}
	if len(runs.follows) != 1 || runs.follows[0].RunId != runID || runs.follows[0].AfterSequence != 1 {
		t.Error(runs.follows)
	}
}

func TestARunThatIsResumedAfterItsLastEventYieldsNothing(t *testing.T) {
	runs := &runs{resumed: [][]*commonv1.RunEvent{{}}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for event, err := range clientOf(t, &agents{}, runs).Resume(ctx, runID, 2) {
		t.Error(event, err)
	}
}

func TestWithoutContactTheClientGivesUpAndNamesTheRun(t *testing.T) {
	runs := &runs{
		sent:    [][]*commonv1.RunEvent{{started(1), nil}},
		resumed: [][]*commonv1.RunEvent{{nil}},
	}
	impatient := backOff
	impatient.Patience = 30 * time.Millisecond
	_, err := clientOf(t, &agents{}, runs).Ask(t.Context(), "a", "b", strata.SendOptions{BackOff: impatient})
	var unreachable *strata.UnreachableError
	if !errors.As(err, &unreachable) || unreachable.RunID != runID ||
		connect.CodeOf(unreachable.Cause) != connect.CodeUnavailable {
		t.Error(err)
	}
}

func TestTheEndOfTheContextEndsTheIteration(t *testing.T) {
	runs := &runs{sent: [][]*commonv1.RunEvent{{started(1), nil}}, resumed: [][]*commonv1.RunEvent{{nil}}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	options := strata.SendOptions{BackOff: strata.BackOff{First: time.Minute, Longest: time.Minute}}
	for event, err := range clientOf(t, &agents{}, runs).Send(ctx, "a", "b", options) {
		if event == nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		cancel()
	}
}

func TestARequestThatCannotBeEncodedIsRefusedAtOnce(t *testing.T) {
	runs := &runs{}
	options := strata.SendOptions{BackOff: strata.BackOff{First: time.Millisecond, Patience: 100 * time.Millisecond}}
	_, err := clientOf(t, &agents{}, runs).Ask(t.Context(), "a", "not UTF-8: \xff", options)
	if failure := strata.FailureOf(err); failure.Code != connect.CodeInvalidArgument || len(runs.requests) != 0 {
		t.Error(err, failure, runs.requests)
	}
}

func TestTheEndOfTheContextHasACode(t *testing.T) {
	for err, code := range map[error]connect.Code{
		context.Canceled:         connect.CodeCanceled,
		context.DeadlineExceeded: connect.CodeDeadlineExceeded,
	} {
		if failure := strata.FailureOf(fmt.Errorf("asking: %w", err)); failure.Code != code {
			t.Error(failure)
		}
	}
}

func TestAskReturnsTheTextsOfTheAgent(t *testing.T) {
	runs := &runs{sent: [][]*commonv1.RunEvent{{
		stored(1, commonv1.Role_ROLE_USER, "Hi."),
		stored(2, commonv1.Role_ROLE_ASSISTANT, "First."),
		stored(3, commonv1.Role_ROLE_ASSISTANT, ""),
		stored(4, commonv1.Role_ROLE_ASSISTANT, "Second."),
		finished(5, commonv1.StopReason_STOP_REASON_END_TURN),
	}}}
	reply, err := clientOf(t, &agents{}, runs).Ask(t.Context(), "a", "Hi.", strata.SendOptions{MaxSteps: 7})
	if err != nil || reply != "First.\n\nSecond." || runs.requests[0].MaxSteps != 7 {
		t.Error(reply, err, runs.requests)
	}
}

func TestAskFailsIfTheRunHasNoReply(t *testing.T) {
	failed := finished(1, commonv1.StopReason_STOP_REASON_ERROR)
	failed.GetRunFinished().Error = &commonv1.RunError{Message: "It broke."}
	for message, end := range map[string]*commonv1.RunEvent{
		"It broke.": failed,
		"the run ended with STOP_REASON_CANCELLED":         finished(1, commonv1.StopReason_STOP_REASON_CANCELLED),
		"the run ended with STOP_REASON_REQUIRES_APPROVAL": finished(1, commonv1.StopReason_STOP_REASON_REQUIRES_APPROVAL),
	} {
		runs := &runs{sent: [][]*commonv1.RunEvent{{end}}}
		_, err := clientOf(t, &agents{}, runs).Ask(t.Context(), "a", "b", strata.SendOptions{})
		var without *strata.RunFailedError
		if !errors.As(err, &without) || err.Error() != message || without.RunID != runID {
			t.Error(err)
		}
	}
}

func TestClientToolsAnswerCalls(t *testing.T) {
	for name, test := range map[string]struct {
		value  any
		err    error
		panics bool
		text   string
		status commonv1.ToolStatus
		taint  []commonv1.Provenance
	}{
		"text":         {value: "At once.", text: "At once."},
		"JSON":         {value: map[string]int{"seen": 1}, text: `{"seen":1}`},
		"HTML in JSON": {value: []string{"<b>R&D</b>"}, text: `["<b>R&D</b>"]`},
		"invalid text": {value: "a\x00b\xff", text: "ab?"},
		"untrusted": {
			value: strata.Untrusted{Value: "x", Label: commonv1.Provenance_PROVENANCE_MCP},
			text:  "x", taint: []commonv1.Provenance{commonv1.Provenance_PROVENANCE_MCP},
		},
		"an error": {err: errors.New("too far"), text: "too far", status: commonv1.ToolStatus_TOOL_STATUS_FAILED},
		"a panic": {
			panics: true,
			text:   "panic: assignment to entry in nil map", status: commonv1.ToolStatus_TOOL_STATUS_FAILED,
		},
		"a long text": {
			value: strings.Repeat("é", 300_000),
			text:  strings.Repeat("é", 199_970) + "... [cut at 200000 characters]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			runs := &runs{
				sent:     [][]*commonv1.RunEvent{{asked(1), finished(2, commonv1.StopReason_STOP_REASON_REQUIRES_APPROVAL)}},
				answered: []*commonv1.RunEvent{finished(1, commonv1.StopReason_STOP_REASON_END_TURN)},
			}
			tool := look(func(arguments struct{ At string }) (any, error) {
				if arguments.At != "a" {
					t.Error(arguments)
				}
				if test.panics {
					var seen map[string]int
					seen["a"] = 1
				}
				return test.value, test.err
			})
			options := strata.SendOptions{Tools: []strata.Tool{tool}}
			if _, err := clientOf(t, &agents{}, runs).Ask(t.Context(), "a", "b", options); err != nil {
				t.Fatal(err)
			}
			decision := runs.answers[0].Decisions[0]
			if decision.GetClientReturn() != test.text || decision.ClientStatus != test.status ||
				!slices.Equal(decision.ClientTaint, test.taint) || decision.ArgumentsHash != "hash" {
				t.Error(decision)
			}
		})
	}
}

func TestRequestsThatWaitForOthersAreLeftToTheCaller(t *testing.T) {
	runs := &runs{sent: [][]*commonv1.RunEvent{{
		asked(1), finished(2, commonv1.StopReason_STOP_REASON_REQUIRES_APPROVAL),
	}}}
	_, err := clientOf(t, &agents{}, runs).Ask(t.Context(), "a", "b", strata.SendOptions{})
	var without *strata.RunFailedError
	if !errors.As(err, &without) || len(runs.answers) != 0 {
		t.Error(err, runs.answers)
	}
}

func TestAddressesAndKeysAreChecked(t *testing.T) {
	t.Setenv("STRATA_ADDRESS", "")
	t.Setenv("STRATA_API_KEY", "")
	for _, options := range []strata.Options{
		{}, {Address: "localhost:1"}, {Address: "ftp://a", APIKey: "key"}, {Address: "http://", APIKey: "key"},
		{Address: "localhost:1", APIKey: "a\nb"}, {Address: "localhost:1", APIKey: "ключ"},
	} {
		if _, err := strata.Connect(options); err == nil {
			t.Error(options)
		}
	}
}
