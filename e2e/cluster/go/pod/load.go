// Load: clients that ask an OpenAI server for chat completions without ever retrying, and count what fails.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const listed = 10000 // failures that a report tells in full: more than any test has requests

// Failure is a request that did not bring a whole answer. Times are seconds since the start of the load.
type Failure struct {
	Started   float64 `json:"started"`
	Ended     float64 `json:"ended"`
	KeepAlive bool    `json:"keep_alive"`
	Reused    bool    `json:"reused"` // sent on a connection that had carried another request
	Streamed  bool    `json:"streamed"`
	Cause     string  `json:"cause"`
}

// Report is what has happened so far.
type Report struct {
	Seconds     float64            `json:"seconds"`
	Requests    int                `json:"requests"` // ended ones
	InFlight    int                `json:"in_flight"`
	Streamed    int                `json:"streamed"`
	KeepAlive   int                `json:"keep_alive"`
	Connections int                `json:"connections"`
	Failed      int                `json:"failed"`
	Failures    []Failure          `json:"failures"` // all of them, up to `listed`
	Latency     map[string]float64 `json:"latency"`  // seconds, of whole answers
	Fewest      int                `json:"fewest"`   // answers that one client had, the one with the fewest
}

type load struct {
	url, model        string
	maxTokens         int
	pause, timeout    time.Duration
	start             time.Time
	mutex             sync.Mutex
	report            Report
	latencies         []float64
	answers           []int // of each client
	stopping, stopped chan struct{}
	stop              sync.Once
}

// runLoad asks until the process ends. GET / of `listen` answers with a report; POST /stop lets the running requests
// end first, and then there are no more.
func runLoad(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	clients := flags.Int("clients", 20, "half of them keep their connection, half make one for each request")
	pause := flags.Duration("pause", time.Second, "between two requests of a client, from half to one and a half of it")
	timeout := flags.Duration("timeout", time.Minute, "for a whole answer")
	maxTokens := flags.Int("max-tokens", 32, "of each answer")
	listen := flags.String("listen", ":8080", "address of the report")
	wait := flags.Bool("wait", false, "start when the server accepts a connection")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("load: two arguments, please: URL (with /v1) and MODEL")
	}
	if *wait {
		if err := waitReachable(flags.Arg(0)); err != nil {
			return err
		}
	}
	l := &load{
		url: strings.TrimSuffix(flags.Arg(0), "/") + "/chat/completions", model: flags.Arg(1),
		maxTokens: *maxTokens, pause: *pause, timeout: *timeout, start: time.Now(),
		stopping: make(chan struct{}), stopped: make(chan struct{}), report: Report{Failures: []Failure{}},
		answers: make([]int, *clients),
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	for number := range *clients {
		group.Go(func() { l.client(number, number%2 == 0, number%4 < 2) })
	}
	go func() { group.Wait(); close(l.stopped) }()
	http.HandleFunc("GET /{$}", l.tell)
	http.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		l.stop.Do(func() { close(l.stopping) })
		<-l.stopped
		l.tell(w, r)
	})
	return http.Serve(listener, nil)
}

// waitReachable returns once the server of a URL accepts a connection. A node refuses connections to a Service until
// kube-proxy has its endpoints.
func waitReachable(server string) error {
	parsed, err := url.Parse(server)
	if err != nil {
		return err
	}
	for {
		if connection, err := net.Dial("tcp", parsed.Host); err == nil {
			return connection.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (l *load) since() float64 { return time.Since(l.start).Seconds() }

// client asks, plainly and streamed in turn, until the load is told to stop.
func (l *load) client(number int, keepAlive, streamed bool) {
	transport := &http.Transport{DisableKeepAlives: !keepAlive, DisableCompression: true}
	client := &http.Client{Transport: transport, Timeout: l.timeout}
	defer transport.CloseIdleConnections()
	for ; ; streamed = !streamed {
		select {
		case <-l.stopping:
			return
		case <-time.After(l.pause/2 + rand.N(l.pause+1)):
		}
		l.mutex.Lock()
		l.report.InFlight++
		l.mutex.Unlock()
		failure := Failure{Started: l.since(), KeepAlive: keepAlive, Streamed: streamed}
		err := l.ask(client, &failure)
		failure.Ended = l.since()
		l.count(number, failure, err)
	}
}

func (l *load) count(number int, one Failure, err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.report.InFlight--
	l.report.Requests++
	if one.Streamed {
		l.report.Streamed++
	}
	if one.KeepAlive {
		l.report.KeepAlive++
	}
	if !one.Reused {
		l.report.Connections++
	}
	if err == nil {
		l.answers[number]++
		l.latencies = append(l.latencies, one.Ended-one.Started)
		return
	}
	l.report.Failed++
	if one.Cause = err.Error(); l.report.Failed <= listed {
		l.report.Failures = append(l.report.Failures, one)
	}
}

// ask sends one request and reads its answer to the end.
func (l *load) ask(client *http.Client, one *Failure) error {
	body, err := json.Marshal(map[string]any{
		"model": l.model, "max_tokens": l.maxTokens, "stream": one.Streamed,
		"messages": []map[string]string{{"role": "user", "content": fmt.Sprintf("Solve: %d + %d.", rand.N(90), rand.N(90))}},
	})
	if err != nil {
		return err
	}
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { one.Reused = info.Reused }}
	request, err := http.NewRequestWithContext(
		httptrace.WithClientTrace(context.Background(), trace), http.MethodPost, l.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.GetBody = nil // else a request that met a closed connection would be sent again unasked
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		return fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
	}
	if one.Streamed {
		return readStream(answer.Body)
	}
	return readPlain(answer.Body)
}

type completion struct {
	Choices []struct {
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
}

func readPlain(body io.Reader) error {
	var answer completion
	text, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("the answer broke off: %w", err)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	if len(answer.Choices) != 1 || answer.Choices[0].FinishReason == "" {
		return fmt.Errorf("no finished choice: %.200s", text)
	}
	return nil
}

// readStream wants a reason for the end and [DONE], and nothing but the end of the body after it.
func readStream(body io.Reader) error {
	lines := bufio.NewScanner(body)
	finished, done := false, false
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var chunk completion
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("no JSON in the stream: %w", err)
		}
		if chunk.Error != nil {
			return fmt.Errorf("an error in the stream: %s", chunk.Error)
		}
		finished = finished || len(chunk.Choices) > 0 && chunk.Choices[0].FinishReason != ""
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the stream broke off: %w", err)
	}
	if !finished || !done {
		return errors.New("the stream ended without a finish reason and [DONE]")
	}
	return nil
}

func (l *load) tell(w http.ResponseWriter, _ *http.Request) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	report := l.report
	report.Seconds = l.since()
	report.Fewest = slices.Min(l.answers)
	sorted := slices.Sorted(slices.Values(l.latencies))
	report.Latency = map[string]float64{}
	for name, share := range map[string]float64{"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1} {
		if len(sorted) > 0 {
			report.Latency[name] = sorted[int(share*float64(len(sorted)-1))]
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(report)
}
