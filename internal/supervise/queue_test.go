package supervise

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

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
	q := Queue{Dir: t.TempDir(), Poll: 2 * time.Millisecond, Cards: func() ([]CardState, error) {
		return []CardState{{UUID: "a", Total: 24 * gib}}, nil
	}}
	self, _ := readProc(os.Getpid())
	var mu sync.Mutex
	var now, most, waited int
	var group sync.WaitGroup
	for i := range 12 {
		group.Go(func() {
			claim := Claim{Run: fmt.Sprint(i), PID: os.Getpid(), Start: self.start, Bytes: 7 * gib}
			if _, err := q.Enter(context.Background(), claim, func() { mu.Lock(); waited++; mu.Unlock() }); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(40 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			if err := q.Leave(claim.Run); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if most < 2 || most > 3 || waited == 0 {
		t.Errorf("%d jobs of 7 GiB at once on 24 GiB, %d waited", most, waited)
	}
}

func TestQueueForgetsTheDead(t *testing.T) {
	q := Queue{Dir: t.TempDir(), Poll: time.Millisecond, Cards: func() ([]CardState, error) {
		return []CardState{{UUID: "a", Total: 24 * gib}}, nil
	}}
	if err := q.update(func([]Claim) ([]Claim, error) {
		return []Claim{{Run: "gone", PID: os.Getpid(), Start: 1, Card: "a", Bytes: 0}}, nil // our number, another's start
	}); err != nil {
		t.Fatal(err)
	}
	self, _ := readProc(os.Getpid())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if c, err := q.Enter(ctx, Claim{Run: "x", PID: os.Getpid(), Start: self.start, Bytes: gib}, func() {}); err != nil || c.Card != "a" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := q.Enter(ctx, Claim{Run: "y", Bytes: 100 * gib}, func() {}); err == nil {
		t.Error("no card can ever hold it: no error")
	}
}

func TestParseSMI(t *testing.T) {
	text := "0, GPU-aaa, 24564, 1024\n1, GPU-bbb, 81559, [N/A]\n2, GPU-ccc, 81559, 0\n"
	cards, err := parseSMI(text, "")
	if err != nil || len(cards) != 2 || cards[0].Total != 24564*units.MiB || cards[1].UUID != "GPU-ccc" {
		t.Errorf("%+v, %v", cards, err)
	}
	parseHolders("GPU-aaa, 77, 900\nGPU-aaa, 77, 1000\nGPU-aaa, 78, [N/A]\n", cards)
	if h := cards[0].Holders; len(h) != 1 || h[77] != 1000*units.MiB {
		t.Errorf("holders %v", h)
	}
	if cards, _ = parseSMI(text, "2"); len(cards) != 1 || cards[0].UUID != "GPU-ccc" {
		t.Errorf("CUDA_VISIBLE_DEVICES=2: %+v", cards)
	}
	if _, err = parseSMI(text, "7"); err == nil {
		t.Error("no card left: no error")
	}
}
