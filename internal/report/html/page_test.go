package html

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"unoom/internal/i18n"
)

// sample is a report of about so many events: steps of forward, backward and
// optimizer over weights that stay, in segments of 20 MiB to 1 GiB.
func sample(events int) *Report {
	r := &Report{
		Title: "snapshot <1>.pickle", Lang: i18n.English,
		Kinds:  []string{"unknown", "weights", "gradients", "optimizer_state", "activations", "temporaries", "held"},
		Phases: []string{"", "load", "forward", "loss", "backward", "optimizer_step", "evaluation"},
		Frames: []Frame{{"<module>", "/home/user/train.py", 80}, {"main", "/home/user/train.py", 61}, {"training_step", "/home/user/train.py", 44}},
		Stacks: [][]uint32{{}}, Places: []string{""},
	}
	for l := range 24 {
		r.Frames = append(r.Frames,
			Frame{"_wrapped_call_impl", "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 1553},
			Frame{fmt.Sprintf("block_%d", l), "/home/user/model.py", 100 + l},
			Frame{"forward", "/home/user/model.py", 31 + l%3},
			Frame{"at::native::empty_cuda(c10::ArrayRef<long>)", "??", 0})
		base := uint32(3 + 4*l)
		r.Stacks = append(r.Stacks, []uint32{base + 3, base + 2, base + 1, base, 2, 1, 0})
		r.Places = append(r.Places, fmt.Sprintf("model.py:%d forward", 31+l%3))
	}
	d := Device{Moment: -1, Texts: map[i18n.Lang]Texts{}}
	for _, lang := range []i18n.Lang{i18n.English, i18n.Chinese} {
		d.Texts[lang] = Texts{
			Headline: "Peak of 7.31 GiB in the backward pass", Lead: "Activations hold most of it.",
			Figures: []Figure{{"7.31 GiB", "peak allocated", ""}, {"8.02 GiB", "peak reserved", ""}, {"reproduced", "replay", "good"}},
			Causes:  []Cause{{"Fragmentation", "62 %", []string{"3.10 GiB are cached in pieces"}}},
			Advice:  []Advice{{"Recompute activations", "recompute.checkpointing", "frees 3.20 GiB, 30 % slower", "activations are most of it", []string{"x = checkpoint(layer, x)"}}},
			Notes:   []string{"The recording begins with an empty allocator."},
		}
	}
	const mib = 1 << 20
	at := uint64(0x7f0000000000)
	live := map[int]bool{}
	event := func() int32 {
		d.TimesUs = append(d.TimesUs, int64(len(d.TimesUs))*37+1)
		return int32(len(d.TimesUs) - 1)
	}
	take := func(mibs int64, kind, phase uint8, stack int) int {
		e := event()
		d.Ranges = append(d.Ranges, Range{Addr: at, Bytes: (mibs + 2) * mib, Born: e, Freed: never})
		d.Tensors = append(d.Tensors, Tensor{
			Addr: at, Bytes: mibs * mib, Asked: mibs*mib - 100, Born: e, Freed: never,
			Stack: uint32(stack % len(r.Stacks)), Place: uint32(stack % len(r.Places)), Kind: kind, Phase: phase,
		})
		at += uint64(mibs+4) * mib
		live[len(d.Tensors)-1] = true
		return len(d.Tensors) - 1
	}
	drop := func(id int) {
		e := event()
		d.Tensors[id].Freed = e
		if id%5 != 0 { // every fifth stays cached
			d.Ranges[id].Freed = e
		}
		delete(live, id)
	}
	for l := range 24 {
		take(90, 1, 1, l+1)
	}
	d.Runs = append(d.Runs, Run{0, 1})
	for step := 0; len(d.TimesUs) < events; step++ {
		d.Runs = append(d.Runs, Run{int32(len(d.TimesUs)), 2})
		var saved []int
		for l := range 24 {
			saved = append(saved, take(int64(40+l%7*9), 4, 2, l+1))
			drop(take(30, 5, 2, l+1))
		}
		d.Runs = append(d.Runs, Run{int32(len(d.TimesUs)), 4})
		var gradients []int
		for _, id := range slices.Backward(saved) {
			gradients = append(gradients, take(45, 2, 4, 0))
			drop(id)
		}
		d.Runs = append(d.Runs, Run{int32(len(d.TimesUs)), 5})
		if step == 0 {
			for l := range 24 {
				take(60, 3, 5, l+1)
			}
		}
		for _, id := range gradients {
			drop(id)
		}
		d.Steps = append(d.Steps, int32(len(d.TimesUs)-1))
	}
	d.OOMs = []int32{int32(len(d.TimesUs) * 3 / 4)}
	d.Moment = 270
	d.Growth = []Growth{{Place: "train.py:44 training_step", Kind: 4, Held: []int64{1, 2, 3, 4, 6, 7}, PerStep: mib}}
	d.Trials = []Trial{{Conf: "expandable_segments:True", Reserved: 7 << 30}, {Recorded: true, Reserved: 8 << 30, Failed: 1, Retries: 2}}
	r.Devices = []Device{d, {Ordinal: 1, Moment: -1, TimesUs: []int64{5}, Texts: d.Texts}}
	return r
}

func write(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// colour counts the pixels of a canvas that have one colour of the style.
func (b *browser) colour(canvas, name string) int {
	b.t.Helper()
	var n int
	b.eval(fmt.Sprintf(`(() => {
		const style = getComputedStyle(document.documentElement).getPropertyValue("--%s").trim();
		const c = document.createElement("canvas").getContext("2d");
		c.fillStyle = style; c.fillRect(0, 0, 1, 1);
		const [r, g, b] = c.getImageData(0, 0, 1, 1).data;
		const canvas = document.getElementById(%q);
		const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
		let n = 0;
		for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) n++;
		return n;
	})()`, name, canvas), &n)
	return n
}

// click presses the mouse at a place of an element, as shares of its size.
func (b *browser) click(selector string, x, y float64) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	b.eval(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({ block: "center" });
		const r = e.getBoundingClientRect(); return { x: r.x + r.width * %v, y: r.y + r.height * %v }; })()`, selector, x, y), &at)
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
	}
	b.frame()
}

func TestPageInABrowser(t *testing.T) {
	b := open(t, write(t, sample(3000)))
	var ready string
	b.eval("document.documentElement.dataset.ready", &ready)
	if ready != "true" {
		t.Fatalf("the page says: %s", b.text("main"))
	}
	b.frame()
	b.shot("light")
	for _, kind := range []string{"weights", "optimizer_state", "activations", "gradients", "cached"} {
		if n := b.colour("timeline", kind); n < 100 {
			t.Errorf("the timeline has %d pixels of %s", n, kind)
		}
	}
	for _, kind := range []string{"weights", "activations", "free"} {
		if n := b.colour("map", kind); n < 100 {
			t.Errorf("the map has %d pixels of %s", n, kind)
		}
	}
	expect := func(selector string, want ...string) {
		t.Helper()
		got := b.text(selector)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s says %q, not %q", selector, got, w)
			}
		}
	}
	expect("#file", "snapshot <1>.pickle")
	expect("#headline", "Peak of 7.31 GiB")
	expect("#figures", "8.02 GiB", "reproduced")
	expect("#timeline-at", "event 270", "5.07 GiB allocated of 6.10 GiB reserved")
	expect("#holders", "model.py:31 forward", "activations", "4.7 %")
	expect("#causes", "Fragmentation", "62 %", "3.10 GiB are cached in pieces")
	expect("#advice", "Recompute activations", "recompute.checkpointing", "frees 3.20 GiB", "x = checkpoint(layer, x)")
	expect("#growth", "1024.00 KiB a step")
	expect("#trials", "expandable_segments:True", "as recorded")
	expect("#map-at", "93 segments")

	// A click chooses another moment; all of the page follows.
	b.click("#timeline", 0.9, 0.5)
	if s := b.text("#timeline-at"); strings.Contains(s, "event 270 ") {
		t.Errorf("a click left the moment: %s", s)
	}
	before := b.text("#flame-at")
	b.eval("unoom.choose(271)", nil)
	b.frame()
	if b.text("#flame-at") == before {
		t.Error("the flame graph stays at its moment")
	}
	expect("#flame-at", "event 270")

	// Search in the flame graph, one block of the map, one place of the table.
	b.eval(`(() => { const e = document.getElementById("flame-search"); e.value = "block_6"; e.dispatchEvent(new Event("input")); })()`, nil)
	b.frame()
	expect("#flame-at", "found 244.00 MiB")
	b.click("#map", 0.52, 0.155)
	expect("#detail", "0x7f", "weights", "/home/user/model.py")
	b.click("#holders tbody tr", 0.5, 0.5)
	if n := b.colour("timeline", "accent"); n < 200 {
		t.Errorf("the line of a place has %d pixels", n)
	}

	b.click(`#langs [data-lang="zh"]`, 0.5, 0.5)
	expect("main", "显存随时间的变化", "谁占着", "激活值")
	expect("#detail", "地址", "权重")
	b.click(`#themes [data-theme="dark"]`, 0.5, 0.5)
	if n := b.colour("timeline", "weights"); n < 100 {
		t.Errorf("in the dark the timeline has %d pixels of weights", n)
	}
	b.shot("dark")
	b.click(`#axis [data-axis="time"]`, 0.5, 0.5)
	if n := b.colour("timeline", "weights"); n < 100 {
		t.Errorf("by time the timeline has %d pixels of weights", n)
	}
	b.click(`#devices [data-device="1"]`, 0.5, 0.5)
	expect("#holders", "此刻没有分配任何显存")
	if p := b.problems(); len(p) > 0 {
		t.Errorf("%v", p)
	}
}

// A hundred thousand events must stay smooth: zooming draws a frame in the time
// of a display's, 16.7 ms, on an idle machine. The bound leaves room for a busy
// one without a GPU.
func TestHundredThousandEventsStaySmooth(t *testing.T) {
	file := write(t, sample(100_000))
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the page has %d bytes", info.Size())
	if info.Size() > 8<<20 {
		t.Errorf("the page has %d bytes", info.Size())
	}
	b := open(t, file)
	var times []float64
	b.eval("unoom.measure(60)", &times)
	slices.Sort(times)
	median, worst := times[len(times)/2], times[len(times)-1]
	t.Logf("100,000 events: a frame takes %.1f ms, the slowest of %d %.1f ms", median, len(times), worst)
	if median > 33 {
		t.Errorf("a frame takes %.1f ms", median)
	}
	// Choosing another moment redraws all of the page.
	var all float64
	b.eval(`(() => { const d = unoom.state.device, start = performance.now();
		for (let i = 1; i <= 5; i++) unoom.choose(Math.floor(d.states * i / 6));
		return (performance.now() - start) / 5; })()`, &all)
	t.Logf("choosing a moment takes %.1f ms", all)
	if all > 150 {
		t.Errorf("choosing a moment takes %.1f ms", all)
	}
}
