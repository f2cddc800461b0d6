package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"unoom/internal/gpu/smi"
	"unoom/internal/units"
)

// A CardState is one card at one moment.
type CardState struct {
	UUID        string
	Total, Used units.Bytes // Used: by all processes
	// Holders says which process holds how much, as far as the driver tells.
	Holders map[int]units.Bytes
}

// A Claim is one job's share of a card, from its admission to its end.
type Claim struct {
	Run   string      `json:"run"`
	PID   int         `json:"pid"`
	Start uint64      `json:"start"`
	Card  string      `json:"card"`
	Bytes units.Bytes `json:"bytes"` // expected on the card, context included; 0: the whole card
	// Holding is what the job's processes hold right now, as far as the driver
	// tells; it is looked up at each admission and not kept.
	Holding units.Bytes `json:"-"`
}

// ErrNoCard says that there is no card to share.
var ErrNoCard = errors.New("queue: nvidia-smi lists no card that may be used")

// admitMargin is kept free on a card that jobs share, per cent.
const admitMargin = 5

// Admit chooses the card for a job that needs so many bytes, 0 for a card of its
// own. A job that was admitted counts with all that it claimed, also while it
// has not grown that far; what the card holds beyond what the jobs hold right
// now is somebody else's and counts too. Where the driver does not tell whose
// memory it is (in a container), a job may be counted twice: fewer are admitted,
// never too many. The fullest card that has room is taken, so that large pieces
// stay whole.
func Admit(cards []CardState, claims []Claim, need units.Bytes) (string, bool) {
	best, bestRoom := "", units.Bytes(-1)
	for _, c := range cards {
		var claimed, holding units.Bytes
		exclusive, jobs := false, 0
		for _, j := range claims {
			if j.Card != c.UUID {
				continue
			}
			jobs++
			exclusive = exclusive || j.Bytes == 0
			claimed += max(j.Bytes, j.Holding)
			holding += j.Holding
		}
		foreign := max(0, c.Used-holding)
		room := c.Total - c.Total*admitMargin/100 - claimed - foreign
		switch {
		case exclusive:
			continue
		case need == 0 && (jobs > 0 || c.Used > c.Total/50):
			continue // a card of its own is one that nobody holds
		case need == 0:
			room = c.Total
		case room < need:
			continue
		}
		if best == "" || room < bestRoom {
			best, bestRoom = c.UUID, room
		}
	}
	return best, best != ""
}

// holding fills in what the jobs hold on their cards.
func holding(cards []CardState, claims []Claim) {
	for i, j := range claims {
		claims[i].Holding = 0
		for _, c := range cards {
			if c.UUID != j.Card {
				continue
			}
			for _, p := range append(descendants(j.PID), proc{pid: j.PID}) {
				claims[i].Holding += c.Holders[p.pid]
			}
		}
	}
}

// A Queue shares the cards of one machine among the runs that use it, without
// a daemon: a file of claims under a lock. The claim of a process that is gone
// is void, whatever the file says.
type Queue struct {
	Dir   string
	Cards func(context.Context) ([]CardState, error)
	Poll  time.Duration
}

func (q Queue) file() string { return filepath.Join(q.Dir, "claims.json") }

// update changes the claims under the lock.
func (q Queue) update(change func([]Claim) ([]Claim, error)) error {
	if err := os.MkdirAll(q.Dir, 0o700); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	lock := flock.New(filepath.Join(q.Dir, "lock"))
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	defer func() { _ = lock.Unlock() }()
	var claims []Claim
	if data, err := os.ReadFile(q.file()); err == nil {
		_ = json.Unmarshal(data, &claims) // a damaged file: nobody claims anything that lives
	}
	claims = slices.DeleteFunc(claims, func(c Claim) bool {
		p, ok := readProc(c.PID)
		return !ok || p.start != c.Start || p.state == 'Z'
	})
	claims, err := change(claims)
	if err != nil {
		return err
	}
	return writeJSON(q.file(), claims)
}

// Enter waits until a card has room for the claim and takes it. waiting is
// called once if it has to wait.
func (q Queue) Enter(ctx context.Context, claim Claim, waiting func()) (Claim, error) {
	for said := false; ; {
		admitted := false
		err := q.update(func(claims []Claim) ([]Claim, error) {
			cards, err := q.Cards(ctx)
			if err != nil {
				return claims, err
			}
			holding(cards, claims)
			if card, ok := Admit(cards, claims, claim.Bytes); ok {
				claim.Card, admitted = card, true
				claims = append(claims, claim)
			} else if !possible(cards, claim.Bytes) {
				return claims, fmt.Errorf("queue: no card here has %s", claim.Bytes)
			}
			return claims, nil
		})
		if err != nil || admitted {
			return claim, err
		}
		if !said {
			said = true
			waiting()
		}
		select {
		case <-ctx.Done():
			return claim, ctx.Err()
		case <-time.After(q.Poll):
		}
	}
}

// enterQueue waits for a card. A signal that asks the run to end ends the wait.
func (s *session) enterQueue() (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if s.forward.ending() != 0 {
				cancel()
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	self, _ := readProc(os.Getpid())
	claim := Claim{Run: s.id, PID: os.Getpid(), Start: self.start, Bytes: s.Need}
	claim, err := s.Queue.Enter(ctx, claim, func() { s.Say("run_queue_waits", needText(s.Need)) })
	return claim.Card, err
}

func needText(need units.Bytes) string {
	if need == 0 {
		return "100 %"
	}
	return need.String()
}

func possible(cards []CardState, need units.Bytes) bool {
	return slices.ContainsFunc(cards, func(c CardState) bool { return c.Total-c.Total*admitMargin/100 >= need })
}

// Leave gives the claim of a run back.
func (q Queue) Leave(run string) error {
	return q.update(func(claims []Claim) ([]Claim, error) {
		return slices.DeleteFunc(claims, func(c Claim) bool { return c.Run == run }), nil
	})
}

// SMICards asks nvidia-smi. It keeps to the cards that an outer setting leaves
// us, which is never widened.
func SMICards(ctx context.Context, visible string) ([]CardState, error) {
	devices, err := smi.List(ctx, visible)
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	if len(devices) == 0 {
		return nil, ErrNoCard
	}
	holders, _ := smi.Holders(ctx) // nobody can say: then what a card holds counts as others'
	return cardStates(devices, holders), nil
}

func cardStates(devices []smi.Device, holders []smi.Holder) []CardState {
	var cards []CardState
	for _, d := range devices {
		c := CardState{UUID: d.UUID, Total: d.Total, Used: d.Used, Holders: map[int]units.Bytes{}}
		for _, h := range holders {
			if h.UUID == d.UUID { // the same process can be listed more than once
				c.Holders[h.PID] = max(c.Holders[h.PID], h.Bytes)
			}
		}
		cards = append(cards, c)
	}
	return cards
}
