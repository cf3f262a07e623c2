// kstatus reads one object as JSON and prints what Flux, `helm --wait` and others that build on kstatus make of it:
// {"status": "Current", "message": "…"}.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	if err := tell(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kstatus:", err)
		os.Exit(1)
	}
}

func tell(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	// Not into a map: its numbers would be floats, and kstatus takes a generation that is none for one that is missing.
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON(text); err != nil {
		return err
	}
	result, err := status.Compute(&object)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(map[string]string{
		"status":  string(result.Status),
		"message": result.Message,
	})
}
