// Package strata is the client of Strata, a server for stateful LLM agents: every RPC of a gateway,
// runs that survive a broken connection, and tools that run in the client's program.
//
// Messages and enumerations are in the generated packages strata.internal/api/...
package strata

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"strata.internal/api/agent_loop/v1/agentloopv1connect"
	"strata.internal/api/archival/v1/archivalv1connect"
	"strata.internal/api/core_memory/v1/corememoryv1connect"
	"strata.internal/api/gateway/v1/gatewayv1connect"
	"strata.internal/api/recall/v1/recallv1connect"
	"strata.internal/api/tool_execution/v1/toolexecutionv1connect"
)

const (
	callTimeout = 30 * time.Second
	// Proxies may treat more frequent pings as an attack.
	pingAfter   = 10 * time.Second
	pingTimeout = 10 * time.Second
)

// Options contain the address of the gateway and the key; if empty, they come from the environment.
type Options struct {
	// Address of the gateway's gRPC port: "localhost:7600", or "https://host" for TLS; from
	// STRATA_ADDRESS if empty.
	Address string
	// APIKey is sent with each call; from STRATA_API_KEY if empty.
	APIKey string
	// Timeout of a unary call; 30 s if zero. Streams have none.
	Timeout time.Duration
	// TLS settings for https, such as private certificate authorities.
	TLS *tls.Config
}

// Client of one gateway. It is safe for concurrent use by several goroutines.
type Client struct {
	Agents       agentloopv1connect.AgentServiceClient       // Agents and their conversations.
	Groups       agentloopv1connect.GroupServiceClient       // Groups of agents.
	Models       agentloopv1connect.ModelServiceClient       // Chat models.
	Prompts      agentloopv1connect.PromptServiceClient      // System prompts.
	Blocks       corememoryv1connect.BlockServiceClient      // Core memory.
	Files        corememoryv1connect.FileServiceClient       // Folders and files.
	Messages     recallv1connect.MessageServiceClient        // Recall memory.
	MessageIndex recallv1connect.MessageIndexServiceClient   // The index of recall memory.
	Archives     archivalv1connect.ArchiveServiceClient      // Archives.
	Passages     archivalv1connect.PassageServiceClient      // Archival memory.
	PassageIndex archivalv1connect.PassageIndexServiceClient // Its index and that of files.
	Tools        toolexecutionv1connect.ToolServiceClient    // Tools.
	MCP          toolexecutionv1connect.McpServiceClient     // MCP servers.
	Runs         gatewayv1connect.RunServiceClient           // Runs.
	Schedules    gatewayv1connect.ScheduleServiceClient      // Schedules.
	Webhooks     gatewayv1connect.WebhookServiceClient       // Webhooks.
	Admin        gatewayv1connect.AdminServiceClient         // Projects and keys.
}

// Connect returns a client. It connects at the first call.
func Connect(options Options) (*Client, error) {
	address := firstNotEmpty(options.Address, os.Getenv("STRATA_ADDRESS"))
	// A key that was read from a file may end with a newline.
	key := strings.TrimSpace(firstNotEmpty(options.APIKey, os.Getenv("STRATA_API_KEY")))
	if address == "" {
		return nil, errors.New("there is no address: give Options.Address or set STRATA_ADDRESS")
	}
	if key == "" {
		return nil, errors.New("there is no API key: give Options.APIKey or set STRATA_API_KEY")
	}
	if strings.ContainsFunc(key, isNotInKeys) {
		// Each call would fail, which looks like a broken connection.
		return nil, errors.New("the API key has blanks or invalid characters:" +
			" give the key as it was printed when it was created")
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	target, err := url.Parse(address)
	if err != nil || target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return nil, fmt.Errorf("%q is not an address: give host:port, or https://host", address)
	}
	timeout := options.Timeout
	if timeout == 0 {
		timeout = callTimeout
	}
	return NewClient(&http.Client{Transport: transport(options.TLS)}, target.String(),
		connect.WithGRPC(), connect.WithInterceptors(&gatewayCalls{key: key, timeout: timeout})), nil
}

// NewClient returns a client with any transport and protocol. It does not set the options with
// which Connect sends the API key and repeats calls: the caller passes its own.
func NewClient(transport connect.HTTPClient, url string, options ...connect.ClientOption) *Client {
	return &Client{
		Agents:       agentloopv1connect.NewAgentServiceClient(transport, url, options...),
		Groups:       agentloopv1connect.NewGroupServiceClient(transport, url, options...),
		Models:       agentloopv1connect.NewModelServiceClient(transport, url, options...),
		Prompts:      agentloopv1connect.NewPromptServiceClient(transport, url, options...),
		Blocks:       corememoryv1connect.NewBlockServiceClient(transport, url, options...),
		Files:        corememoryv1connect.NewFileServiceClient(transport, url, options...),
		Messages:     recallv1connect.NewMessageServiceClient(transport, url, options...),
		MessageIndex: recallv1connect.NewMessageIndexServiceClient(transport, url, options...),
		Archives:     archivalv1connect.NewArchiveServiceClient(transport, url, options...),
		Passages:     archivalv1connect.NewPassageServiceClient(transport, url, options...),
		PassageIndex: archivalv1connect.NewPassageIndexServiceClient(transport, url, options...),
		Tools:        toolexecutionv1connect.NewToolServiceClient(transport, url, options...),
		MCP:          toolexecutionv1connect.NewMcpServiceClient(transport, url, options...),
		Runs:         gatewayv1connect.NewRunServiceClient(transport, url, options...),
		Schedules:    gatewayv1connect.NewScheduleServiceClient(transport, url, options...),
		Webhooks:     gatewayv1connect.NewWebhookServiceClient(transport, url, options...),
		Admin:        gatewayv1connect.NewAdminServiceClient(transport, url, options...),
	}
}

// transport returns a transport that speaks HTTP/2 only, with and without TLS, as gRPC requires.
func transport(config *tls.Config) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: config,
		Protocols:       &protocols,
		HTTP2:           &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
}

func isNotInKeys(character rune) bool { return character <= ' ' || character > '~' }

func firstNotEmpty(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}
