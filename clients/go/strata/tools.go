package strata

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	commonv1 "strata.internal/api/common/v1"
	toolexecutionv1 "strata.internal/api/tool_execution/v1"
)

// The gateway's limit for one return, in characters.
const maxChars = 200_000

// Tool is a function of this program that agents call.
type Tool struct {
	Name        string // At most 48 characters.
	Description string // Description for the model.
	Parameters  any    // JSON schema of the arguments, an object.
	// Run makes a call with the arguments of the model, which are not validated. A string is returned
	// to the model unchanged, other values as JSON. If Run fails or panics, the model gets the text of the
	// error.
	Run func(ctx context.Context, arguments json.RawMessage) (any, error)
}

// Untrusted is a return with untrusted content, which taints the turn.
type Untrusted struct {
	Value any
	Label commonv1.Provenance // PROVENANCE_WEB or PROVENANCE_MCP.
}

// NewTool returns a tool whose arguments are decoded into a type.
func NewTool[A any](
	name, description string, parameters any, run func(context.Context, A) (any, error),
) Tool {
	return Tool{
		Name:        name,
		Description: description,
		Parameters:  parameters,
		Run: func(ctx context.Context, encoded json.RawMessage) (any, error) {
			var arguments A
			if err := json.Unmarshal(encoded, &arguments); err != nil {
				return nil, err
			}
			return run(ctx, arguments)
		},
	}
}

// UpsertClientTool registers a function of this program as a client tool; agents use it by its name.
func (client *Client) UpsertClientTool(
	ctx context.Context, tool Tool,
) (*toolexecutionv1.Tool, error) {
	parameters, err := json.Marshal(tool.Parameters)
	if err != nil {
		return nil, fmt.Errorf("parameters of %s: %w", tool.Name, err)
	}
	response, err := client.Tools.UpsertTool(ctx, &toolexecutionv1.UpsertToolRequest{
		RequestId:      NewRequestID(),
		Type:           commonv1.ToolType_TOOL_TYPE_CLIENT,
		Name:           tool.Name,
		Description:    tool.Description,
		ParametersJson: string(parameters),
	})
	return response.GetTool(), err
}

// covers reports whether a request consists only of calls of these tools.
func covers(tools []Tool, request *commonv1.ApprovalRequestPart) bool {
	for _, call := range request.GetToolCalls() {
		binding := bindingOf(request, call)
		if !binding.GetByClient() || toolOf(tools, call.GetName()) == nil {
			return false
		}
	}
	return true
}

// decide makes the calls of a request that the tools cover, in the order of the request.
func decide(
	ctx context.Context, tools []Tool, request *commonv1.ApprovalRequestPart,
) []*commonv1.ApprovalDecision {
	decisions := make([]*commonv1.ApprovalDecision, 0, len(request.GetToolCalls()))
	for _, call := range request.GetToolCalls() {
		decision := &commonv1.ApprovalDecision{
			ToolCallId:    call.GetToolCallId(),
			ArgumentsHash: bindingOf(request, call).GetArgumentsHash(),
		}
		makeCall(ctx, toolOf(tools, call.GetName()), call, decision)
		decisions = append(decisions, decision)
	}
	return decisions
}

func makeCall(
	ctx context.Context, tool *Tool, call *commonv1.ToolCallPart, decision *commonv1.ApprovalDecision,
) {
	arguments := call.GetArguments()
	if arguments == "" {
		arguments = "{}"
	}
	value, err := run(ctx, tool, arguments)
	if untrusted, ok := value.(Untrusted); ok {
		decision.ClientTaint = []commonv1.Provenance{untrusted.Label}
		value = untrusted.Value
	}
	var text string
	if err == nil {
		text, err = asText(value)
	}
	if err != nil {
		decision.ClientStatus = commonv1.ToolStatus_TOOL_STATUS_FAILED
		text = err.Error()
	}
	text = sendable(text)
	decision.ClientReturn = &text
}

// run makes a call; a panic is an error, since a program must not end because of arguments of a model.
func run(ctx context.Context, tool *Tool, arguments string) (value any, err error) {
	defer func() {
		if failure := recover(); failure != nil {
			value, err = nil, fmt.Errorf("panic: %v", failure)
		}
	}()
	return tool.Run(ctx, json.RawMessage(arguments))
}

func asText(value any) (string, error) {
	if text, ok := value.(string); ok {
		return text, nil
	}
	// The model must read "<b>", not "\u003cb\u003e", the default of the encoder for pages of HTML.
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return strings.TrimSuffix(text.String(), "\n"), err
}

// sendable returns text that is valid in a message: UTF-8 without NUL, and truncated.
func sendable(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "?")
	characters := []rune(text)
	if len(characters) <= maxChars {
		return text
	}
	note := fmt.Sprintf("... [cut at %d characters]", maxChars)
	return string(characters[:maxChars-len(note)]) + note
}

func toolOf(tools []Tool, name string) *Tool {
	for index := range tools {
		if tools[index].Name == name {
			return &tools[index]
		}
	}
	return nil
}

func bindingOf(
	request *commonv1.ApprovalRequestPart, call *commonv1.ToolCallPart,
) *commonv1.ApprovalBinding {
	for _, binding := range request.GetBindings() {
		if binding.GetToolCallId() == call.GetToolCallId() {
			return binding
		}
	}
	return nil
}
