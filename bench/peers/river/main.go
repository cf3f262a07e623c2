// River as a scheduler of wakes: see peer for the words.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Wake names what the headers need; the body goes out as the row has it.
type Wake struct {
	DeliveryID   string `json:"delivery_id"`
	ScheduledFor string `json:"scheduled_for"`
}

func (Wake) Kind() string { return "wake" }

type worker struct {
	river.WorkerDefaults[Wake]
	sink   string
	http   http.Client
	worked atomic.Int64
}

func (w *worker) Work(ctx context.Context, job *river.Job[Wake]) error {
	w.worked.Add(1)
	if w.sink == "-" {
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.sink, bytes.NewReader(job.EncodedArgs))
	if err != nil {
		return err
	}
	request.Header.Set("content-type", "application/json")
	request.Header.Set("authorization", "Bearer bench-wake-token-0123456789")
	request.Header.Set("idempotency-key", job.Args.DeliveryID)
	request.Header.Set("ce-id", job.Args.DeliveryID)
	request.Header.Set("ce-time", job.Args.ScheduledFor)
	response, err := w.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil { // or the connection is not used again
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}

func settings(config string) *river.Config {
	if config == "default" {
		return &river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}}
	}
	return &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 5 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
	}
}

func work(ctx context.Context, pool *pgxpool.Pool, config, sink string) {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	w := &worker{sink: sink, http: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: river.QueueNumWorkersMax}}}
	set := settings(config)
	set.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})) // its own goes to stdout
	set.Workers = river.NewWorkers()
	river.AddWorker(set.Workers, w)
	client, err := river.NewClient(riverpgxv5.New(pool), set)
	check(err)
	check(client.Start(ctx))
	// Only a leader makes scheduled jobs available: this process, or another that is seen to renew its term and so is not a dead one's.
	for seen := (time.Time{}); ; time.Sleep(10 * time.Millisecond) {
		var leader string
		var expires time.Time
		if pool.QueryRow(ctx, "SELECT leader_id, expires_at FROM river_leader").Scan(&leader, &expires) != nil { // none yet
			continue
		}
		if leader == client.ID() || !seen.IsZero() && !expires.Equal(seen) {
			break
		}
		seen = expires
	}
	// It begins at a random instant of its first second.
	time.Sleep(time.Second)
	fmt.Println("ready")
	<-terminated
	soft, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if client.Stop(soft) != nil {
		check(client.StopAndCancel(ctx))
	}
	fmt.Println("worked", w.worked.Load())
}

func version() {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if module.Path == "github.com/riverqueue/river" {
			fmt.Printf("River %s, Go %s\n", strings.TrimPrefix(module.Version, "v"), strings.TrimPrefix(runtime.Version(), "go"))
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		version()
		return
	}
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Args[2])
	check(err)
	defer pool.Close()
	switch os.Args[1] {
	case "migrate":
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		check(err)
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		check(err)
	case "work":
		work(ctx, pool, os.Args[3], os.Args[4])
	default:
		log.Fatalf("unknown word %q", os.Args[1])
	}
}
