package main

import (
	"context"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// A job is work that is due at certain times: its ticks. Its name is also the key of its lock and the resource that its
// writes are fenced by.
type job struct {
	name     string
	schedule cron.Schedule
	// work does what is due at a tick, and returns what it brought. It should return soon after ctx has ended.
	work func(ctx context.Context, tick time.Time) (amount int64, err error)
}

// exampleJobs are the jobs of this example: one that is busy most of the time, one that is over before the other replicas
// have looked, and one that is slow.
func exampleJobs() ([]job, error) {
	var list []job
	for _, def := range []struct {
		name, spec string
		takes      time.Duration
	}{
		{"invoices", "*/2 * * * * *", 1200 * time.Millisecond},
		{"mail", "* * * * * *", 20 * time.Millisecond},
		{"report", "*/3 * * * * *", 1600 * time.Millisecond},
	} {
		schedule, err := parseSchedule(def.spec)
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", def.name, err)
		}
		list = append(list, job{name: def.name, schedule: schedule, work: simulate(def.takes)})
	}
	return list, nil
}

// parseSchedule reads a cron schedule whose first field is the second. Times are UTC.
func parseSchedule(spec string) (cron.Schedule, error) {
	parser := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	schedule, err := parser.Parse(spec)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", spec, err)
	}
	return schedule, nil
}

// simulate returns work that takes some time and brings an amount that depends on the tick.
func simulate(takes time.Duration) func(context.Context, time.Time) (int64, error) {
	return func(ctx context.Context, tick time.Time) (int64, error) {
		done := time.NewTimer(takes)
		defer done.Stop()
		select {
		case <-done.C:
			return 1 + tick.Unix()%100, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// next is the first tick after t, the zero time if there is none.
func (j job) next(t time.Time) time.Time { return j.schedule.Next(t.UTC()) }

// ticks are those after since, up to and including until.
func (j job) ticks(since, until time.Time) []time.Time {
	var list []time.Time
	for t := j.next(since); !t.IsZero() && !t.After(until); t = j.next(t) {
		list = append(list, t)
	}
	return list
}
