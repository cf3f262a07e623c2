// A router for trying things out: takes wakes, prints one line of JSON for each, tells which came, and is slow or fails when
// it is told to.
//
//	POST /internal/wake            a wake; answered 202, or as told
//	GET  /wakes[?label=PREFIX]     every wake so far, a line each, in the order of arrival
//	PUT  /behaviour                {"delay_ms": 300, "status": 503, "retry_after": 5}; {} is prompt and takes everything
//	GET  /livez
//
// PORT (8088) is where it listens, on every address. If TOKEN_FILE names a file, a wake must bring what it holds as bearer.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Chronos reads no more of an answer and sends no more than 256 KiB of payload and 32 KiB of message, both perhaps escaped.
const maxBody = 4 << 20

type wake struct {
	ReceivedAt string            `json:"received_at"`
	Status     int               `json:"status"` // what was answered
	Headers    map[string]string `json:"headers"`
	Body       json.RawMessage   `json:"body"`
	label      string
}

type behaviour struct {
	DelayMS    int `json:"delay_ms"`
	Status     int `json:"status"`
	RetryAfter int `json:"retry_after"`
}

type router struct {
	token string
	mutex sync.Mutex // guards what follows, and keeps lines on stdout whole
	wakes []wake
	now   behaviour
}

func (r *router) wake(w http.ResponseWriter, request *http.Request) {
	received := time.Now().UTC()
	if r.token != "" && request.Header.Get("Authorization") != "Bearer "+r.token {
		http.Error(w, "not the wake token", http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(io.LimitReader(request.Body, maxBody))
	var read struct {
		Label string `json:"label"`
	}
	if err != nil || json.Unmarshal(body, &read) != nil {
		http.Error(w, "not a wake", http.StatusBadRequest)
		return
	}
	headers := map[string]string{}
	for name, values := range request.Header {
		if name != "Authorization" {
			headers[strings.ToLower(name)] = strings.Join(values, ", ")
		}
	}

	r.mutex.Lock()
	told := r.now
	if told.Status == 0 {
		told.Status = http.StatusAccepted
	}
	arrived := wake{received.Format(time.RFC3339Nano), told.Status, headers, body, read.Label}
	r.wakes = append(r.wakes, arrived)
	line, _ := json.Marshal(arrived)
	fmt.Println(string(line))
	r.mutex.Unlock()

	time.Sleep(time.Duration(told.DelayMS) * time.Millisecond)
	if told.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(told.RetryAfter))
	}
	w.WriteHeader(told.Status)
}

func (r *router) list(w http.ResponseWriter, request *http.Request) {
	prefix := request.URL.Query().Get("label")
	r.mutex.Lock()
	wakes := r.wakes
	r.mutex.Unlock()
	lines := json.NewEncoder(w)
	for _, one := range wakes {
		if strings.HasPrefix(one.label, prefix) {
			if lines.Encode(one) != nil {
				return // the reader is gone
			}
		}
	}
}

func (r *router) behave(w http.ResponseWriter, request *http.Request) {
	var told behaviour
	if err := json.NewDecoder(request.Body).Decode(&told); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mutex.Lock()
	r.now = told
	r.mutex.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func main() {
	r := &router{}
	if file := os.Getenv("TOKEN_FILE"); file != "" {
		token, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		r.token = strings.TrimSpace(string(token))
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "8088"
	}
	http.HandleFunc("POST /internal/wake", r.wake)
	http.HandleFunc("GET /wakes", r.list)
	http.HandleFunc("PUT /behaviour", r.behave)
	http.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	log.Fatal(http.ListenAndServe(":"+port, nil))
}
