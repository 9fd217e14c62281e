// pod is the whole content of the suite's own image: the pause container, and what tests run inside a cluster.
//
//	pod                 wait for SIGTERM (the pause container)
//	pod resolve NAME    print the addresses of NAME; tries for a while
//	pod fetch URL       print an HTTP answer's body; a status other than 200 is a failure; tries for a while
//	pod serve TEXT      answer every request on port 8080 with TEXT
//	pod load URL MODEL  ask a model for completions until told to stop (load.go)
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	mode, argument := "pause", ""
	if len(os.Args) > 2 {
		mode, argument = os.Args[1], os.Args[2]
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	failed := make(chan error, 1)
	switch mode {
	case "pause":
	case "resolve":
		go func() { failed <- try(resolve, argument) }()
	case "fetch":
		go func() { failed <- try(fetch, argument) }()
	case "serve":
		answer := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, argument) }
		go func() { failed <- http.ListenAndServe(":8080", http.HandlerFunc(answer)) }()
	case "load":
		go func() { failed <- runLoad(os.Args[2:]) }()
	default:
		fmt.Fprintf(os.Stderr, "pod: no mode %q: resolve NAME, fetch URL, serve TEXT, load URL MODEL, or nothing\n", mode)
		os.Exit(2)
	}
	select {
	case <-stop:
	case err := <-failed:
		if err != nil {
			fmt.Fprintln(os.Stderr, "pod:", err)
			os.Exit(1)
		}
	}
}

// try runs it until it does well, for three minutes: what is new in a cluster is known everywhere a moment later.
func try(it func(string) error, argument string) error {
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		if err := it(argument); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func resolve(name string) error {
	addresses, err := net.LookupHost(name)
	for _, address := range addresses {
		fmt.Println(address)
	}
	return err
}

func fetch(url string) error {
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, answer.Status, text)
	}
	_, err = os.Stdout.Write(text)
	return err
}
