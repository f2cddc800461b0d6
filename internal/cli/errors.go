package cli

import (
	"errors"

	"unoom/internal/units"
	"unoom/internal/workload"
)

// answerNo ends a command whose answer, already printed, is "no".
type answerNo struct{}

func (answerNo) Error() string { return "the answer is no" }

// hinted is an error that says what to do next.
type hinted struct {
	error
	hints []string
}

func (h hinted) Unwrap() error { return h.error }

// withHint adds what the user can do about err.
func withHint(err error, hints ...string) error { return hinted{err, hints} }

// hintsOf collects the hints that travel with err.
func hintsOf(err error) []string {
	if h, ok := errors.AsType[hinted](err); ok {
		return h.hints
	}
	if size, ok := errors.AsType[*units.SizeError](err); ok {
		return []string{size.Hint}
	}
	if setting, ok := errors.AsType[*workload.SettingError](err); ok {
		return setting.Hints
	}
	return nil
}
