package main

import (
	"context"
	"fmt"
	"log"

	agentloopv1 "strata.internal/api/agent_loop/v1"
	commonv1 "strata.internal/api/common/v1"
	corememoryv1 "strata.internal/api/core_memory/v1"
	"strata.internal/strata"
)

func main() {
	ctx := context.Background()
	client := must(strata.Connect(strata.Options{})) // STRATA_ADDRESS and STRATA_API_KEY
	agentID := createAgent(ctx, client)
	ask(ctx, client, agentID)
	stream(ctx, client, agentID)
	runClientTool(ctx, client)
	resume(ctx, client, agentID)
	refuse(ctx, client)
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func createAgent(ctx context.Context, client *strata.Client) string {
	created := must(client.Agents.CreateAgent(ctx, &agentloopv1.CreateAgentRequest{
		Blocks: []*corememoryv1.NewBlock{
			{Label: "human", Value: "Her name is Ann. She lives in Lisbon."},
			{Label: "persona", Value: "A travel agent who answers in one sentence."},
		},
	}))
	return created.Agent.Id
}

func ask(ctx context.Context, client *strata.Client, agentID string) {
	reply := must(client.Ask(ctx, agentID, "Where do I live?", strata.SendOptions{}))
	fmt.Println("reply:", reply)
}

func stream(ctx context.Context, client *strata.Client, agentID string) {
	question := "What did I say about trains?"
	for event, err := range client.Send(ctx, agentID, question, strata.SendOptions{}) {
		must(event, err)
		switch event := event.Event.(type) {
		case *commonv1.RunEvent_ToolStarted:
			fmt.Println("call:", event.ToolStarted.Name, event.ToolStarted.Arguments)
		case *commonv1.RunEvent_TextDelta:
			fmt.Print(event.TextDelta.Text)
		}
	}
	fmt.Println()
}

func runClientTool(ctx context.Context, client *strata.Client) {
	parameters := map[string]any{
		"type":       "object",
		"properties": map[string]any{"format": map[string]any{"type": "string"}},
	}
	type arguments struct{ Format string }
	readClipboard := strata.NewTool("read_clipboard", "Reads the clipboard of the user.", parameters,
		func(_ context.Context, arguments arguments) (any, error) {
			return map[string]string{arguments.Format: "Lisbon to Porto, 9:30"}, nil
		})
	must(client.UpsertClientTool(ctx, readClipboard))
	helper := must(client.Agents.CreateAgent(ctx, &agentloopv1.CreateAgentRequest{
		Tools: []string{readClipboard.Name},
	}))
	answer := must(client.Ask(ctx, helper.Agent.Id, "What have I copied?", strata.SendOptions{
		Tools: []strata.Tool{readClipboard},
	}))
	fmt.Println("answer:", answer)
}

func resume(ctx context.Context, client *strata.Client, agentID string) {
	var runID string
	var sequence int64
	for event, err := range client.Send(ctx, agentID, "Plan a week in Porto.", strata.SendOptions{}) {
		must(event, err)
		runID, sequence = event.RunId, max(sequence, event.Sequence)
		if event.GetTextDelta() != nil {
			break // The run continues.
		}
	}
	fmt.Println("left")
	for event, err := range client.Resume(ctx, runID, sequence) {
		must(event, err)
		if stored := event.GetMessageStored(); stored != nil {
			fmt.Println("plan:", strata.TextOf(stored.Message))
		}
	}
}

func refuse(ctx context.Context, client *strata.Client) {
	_, err := client.Agents.GetAgent(ctx, &agentloopv1.GetAgentRequest{Name: "nobody"})
	failure := strata.FailureOf(err)
	fmt.Println("refused:", failure.Reason, failure.Message)
}
