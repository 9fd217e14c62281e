package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func lint() error {
	answer, err := http.Get(os.Getenv("UNMASK_CLIENT_SERVER") + "/metrics")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	problems, err := promlint.New(answer.Body).Lint()
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("%v", problems)
	}
	return nil
}

func main() {
	var told any
	if err := lint(); err != nil {
		told = err.Error()
	}
	line, _ := json.Marshal(map[string]any{"kind": "more", "name": "metrics", "error": told, "seconds": 0})
	if err := os.WriteFile(os.Getenv("UNMASK_CLIENT_REPORT"), append(line, '\n'), 0o644); err != nil {
		panic(err)
	}
}
