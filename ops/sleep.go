package ops

import (
	"context"
	"time"
)

// SleepUntil waits until a moment, or until ctx ends: then it returns the error of ctx.
func SleepUntil(ctx context.Context, at time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(at)):
		return nil
	}
}
