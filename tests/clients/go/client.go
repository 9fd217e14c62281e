package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

const model = "unmask-demo"

const schema = `{"type": "object", "additionalProperties": false, "required": ["name", "age", "city"],
"properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}}`

var client openai.Client

func check(kind, name string, work func() error) {
	began := time.Now()
	var told any
	if err := work(); err != nil {
		told = err.Error()
	}
	line, _ := json.Marshal(map[string]any{"kind": kind, "name": name, "error": told, "seconds": time.Since(began).Seconds()})
	report, err := os.OpenFile(os.Getenv("UNMASK_CLIENT_REPORT"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer report.Close()
	fmt.Fprintln(report, string(line))
}

func same(found, expected any) error {
	if found != expected {
		return fmt.Errorf("%q instead of %q", found, expected)
	}
	return nil
}

func asked(text string) openai.ChatCompletionNewParams {
	said := []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}
	return openai.ChatCompletionNewParams{Model: model, Messages: said}
}

func answer(params openai.ChatCompletionNewParams) (string, error) {
	answer, err := client.Chat.Completions.New(context.Background(), params)
	if err != nil {
		return "", err
	}
	return answer.Choices[0].Message.Content, nil
}

func main() {
	client = openai.NewClient(
		option.WithBaseURL(os.Getenv("UNMASK_CLIENT_SERVER")+"/v1"),
		option.WithAPIKey(os.Getenv("UNMASK_CLIENT_KEY")),
		option.WithMaxRetries(0),
	)
	check("basic", "chat", func() error {
		text, err := answer(asked("Solve: 12 + 30."))
		if err != nil {
			return err
		}
		return same(text, "12 + 30 = 42.")
	})
	check("streaming", "accumulated", func() error {
		tale := asked("Tell a story about Anna, a fox and a river.")
		whole, err := answer(tale)
		if err != nil {
			return err
		}
		stream := client.Chat.Completions.NewStreaming(context.Background(), tale)
		var text strings.Builder
		sum := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			chunk := stream.Current()
			if !sum.AddChunk(chunk) {
				return fmt.Errorf("a chunk does not fit: %v", chunk)
			}
			if len(chunk.Choices) > 0 {
				text.WriteString(chunk.Choices[0].Delta.Content)
			}
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if err := same(text.String(), whole); err != nil {
			return err
		}
		return same(sum.Choices[0].Message.Content, whole)
	})
	check("structured", "json schema", func() error {
		params := asked("Anna, 34, lives in Rome. Write this as JSON.")
		schema := openai.ResponseFormatJSONSchemaJSONSchemaParam{
			Name:   "person",
			Strict: openai.Bool(true),
			Schema: json.RawMessage(schema), // a map would lose the order of the properties, which answers follow
		}
		params.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{
			OfJSONSchema: &openai.ResponseFormatJSONSchemaParam{JSONSchema: schema},
		}
		text, err := answer(params)
		if err != nil {
			return err
		}
		var person struct {
			Name, City string
			Age        int
		}
		if err := json.Unmarshal([]byte(text), &person); err != nil {
			return err
		}
		return same(fmt.Sprintf("%+v", person), "{Name:Anna City:Rome Age:34}")
	})
}
