package cloud

import (
	"regexp"
	"testing"

	"unoom/internal/gpu"
)

func TestMachinesAreSound(t *testing.T) {
	machines, err := Published()
	if err != nil {
		t.Fatal(err)
	}
	cards, err := gpu.Published()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for i := range cards {
		known[cards[i].Name] = true
	}
	date := regexp.MustCompile(`^20\d\d-\d\d-\d\d$`)
	for _, m := range machines {
		switch {
		case !known[m.GPU]:
			t.Errorf("%s %s: no card %q in catalog/gpus", m.Cloud, m.Name, m.GPU)
		case m.GPUs < 1 || m.GPUs > 16:
			t.Errorf("%s %s: %d cards", m.Cloud, m.Name, m.GPUs)
		case m.USDHour/float64(m.GPUs) < 0.1 || m.USDHour/float64(m.GPUs) > 20:
			t.Errorf("%s %s: $%g for %d cards", m.Cloud, m.Name, m.USDHour, m.GPUs)
		case !date.MatchString(m.Date) || m.Source == "" || m.Region == "":
			t.Errorf("%s %s: no source or date", m.Cloud, m.Name)
		}
	}
	if got := Names(machines); len(got) < 5 {
		t.Errorf("clouds: %v", got)
	}
}
