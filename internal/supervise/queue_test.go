package supervise

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"unoom/internal/gpu/smi"
	"unoom/internal/units"
)

// Jobs come, grow to what they claimed, and go, in any order: those on a card
// never need more than it has.
func TestAdmitNeverCollides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cards := []CardState{{UUID: "a", Total: 24 * gib}, {UUID: "b", Total: 80 * gib}}
		foreign := map[string]units.Bytes{"a": rapid.SampledFrom([]units.Bytes{0, gib, 20 * gib}).Draw(t, "foreign"), "b": 0}
		var claims []Claim
		for i := range 60 {
			for j := range claims { // somebody grows
				if rapid.Bool().Draw(t, "grows") && claims[j].Bytes > 0 {
					claims[j].Holding = claims[j].Bytes * units.Bytes(rapid.IntRange(1, 100).Draw(t, "share")) / 100
				}
			}
			if len(claims) > 0 && rapid.IntRange(0, 3).Draw(t, "ends") == 0 {
				claims = claims[1:]
			}
			for c := range cards {
				cards[c].Used = foreign[cards[c].UUID]
				for _, j := range claims {
					if j.Card == cards[c].UUID {
						cards[c].Used += j.Holding
					}
				}
			}
			need := units.Bytes(rapid.IntRange(0, 40).Draw(t, "need")) * gib
			card, ok := Admit(cards, claims, need)
			if ok {
				claims = append(claims, Claim{Run: fmt.Sprint(i), Card: card, Bytes: need})
			}
			for _, c := range cards {
				sum, jobs, alone := foreign[c.UUID], 0, false
				for _, j := range claims {
					if j.Card == c.UUID {
						sum += j.Bytes
						jobs++
						alone = alone || j.Bytes == 0
					}
				}
				if jobs > 0 && sum > c.Total || alone && jobs > 1 {
					t.Fatalf("card %s of %v: %v claimed, %d jobs", c.UUID, c.Total, sum, jobs)
				}
			}
		}
	})
}

func TestAdmitTakesTheFullestCardWithRoom(t *testing.T) {
	cards := []CardState{{UUID: "big", Total: 80 * gib}, {UUID: "small", Total: 24 * gib}}
	if card, ok := Admit(cards, nil, 20*gib); !ok || card != "small" {
		t.Errorf("%s", card)
	}
	if card, ok := Admit(cards, []Claim{{Card: "small", Bytes: 10 * gib}}, 20*gib); !ok || card != "big" {
		t.Errorf("%s: the small one is promised to a job that has not grown yet", card)
	}
	if _, ok := Admit(cards, []Claim{{Card: "small", Bytes: 0}, {Card: "big", Bytes: 70 * gib}}, 20*gib); ok {
		t.Error("no card has room")
	}
	if card, ok := Admit([]CardState{{UUID: "busy", Total: 24 * gib, Used: 10 * gib}}, nil, 0); ok {
		t.Errorf("%s is not a card of its own", card)
	}
}

func TestQueueOfManyAtOnce(t *testing.T) {
	q := Queue{Dir: t.TempDir(), Poll: 2 * time.Millisecond, Cards: func(context.Context) ([]CardState, error) {
		return []CardState{{UUID: "a", Total: 24 * gib}}, nil
	}}
	self, _ := readProc(os.Getpid())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var now, most, waited int
	full := make(chan struct{}) // closed when the card is full and somebody waits
	note := func(entered, waits int) {
		mu.Lock()
		defer mu.Unlock()
		now, waited = now+entered, waited+waits
		most = max(most, now)
		if most >= 3 && waited > 0 {
			select {
			case <-full:
			default:
				close(full)
			}
		}
	}
	var group sync.WaitGroup
	for i := range 12 {
		group.Go(func() {
			claim := Claim{Run: fmt.Sprint(i), PID: os.Getpid(), Start: self.start, Bytes: 7 * gib}
			if _, err := q.Enter(ctx, claim, func() { note(0, 1) }); err != nil {
				t.Error(err)
				return
			}
			note(1, 0)
			select {
			case <-full:
			case <-ctx.Done():
			}
			note(-1, 0)
			if err := q.Leave(claim.Run); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if most != 3 || waited == 0 {
		t.Errorf("%d jobs of 7 GiB at once on 24 GiB, %d waited", most, waited)
	}
}

func TestQueueForgetsTheDead(t *testing.T) {
	q := Queue{Dir: t.TempDir(), Poll: time.Millisecond, Cards: func(context.Context) ([]CardState, error) {
		return []CardState{{UUID: "a", Total: 24 * gib}}, nil
	}}
	if err := q.update(func([]Claim) ([]Claim, error) {
		return []Claim{{Run: "gone", PID: os.Getpid(), Start: 1, Card: "a", Bytes: 0}}, nil // our number, another's start
	}); err != nil {
		t.Fatal(err)
	}
	self, _ := readProc(os.Getpid())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if c, err := q.Enter(ctx, Claim{Run: "x", PID: os.Getpid(), Start: self.start, Bytes: gib}, func() {}); err != nil || c.Card != "a" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := q.Enter(ctx, Claim{Run: "y", Bytes: 100 * gib}, func() {}); err == nil {
		t.Error("no card can ever hold it: no error")
	}
}

func TestCardStates(t *testing.T) {
	cards := cardStates(
		[]smi.Device{{UUID: "a", Total: 24 * gib, Used: gib}, {UUID: "b", Total: 80 * gib}},
		[]smi.Holder{{UUID: "a", PID: 77, Bytes: 1}, {UUID: "a", PID: 77, Bytes: 3}, {UUID: "a", PID: 77, Bytes: 2}, {UUID: "gone", PID: 7}})
	if len(cards) != 2 || cards[0].Used != gib || len(cards[0].Holders) != 1 || cards[0].Holders[77] != 3 || len(cards[1].Holders) != 0 {
		t.Errorf("%+v", cards)
	}
}
