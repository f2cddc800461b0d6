package report

import (
	"regexp"
	"strings"
	"testing"

	"unoom/internal/account"
	"unoom/internal/diagnose"
	"unoom/internal/i18n"
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
)

// explained runs the whole chain on a text.
func explained(t *testing.T, lang i18n.Lang, text string) (*diagnose.Diagnosis, *Explanation) {
	t.Helper()
	res := oomlog.ScanString("run/train.log", text)
	d := diagnose.Log(res, diagnose.Given{})
	e, err := Explain(&d, remedy.Advise(d.Situation), res, i18n.Load(lang))
	if err != nil {
		t.Fatal(err)
	}
	return &d, e
}

const message = "step 7/100\n" +
	"Traceback (most recent call last):\n" +
	"  File \"/home/me/train.py\", line 12, in <module>\n    loss.backward()\n" +
	"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 23.64 GiB of which 1.41 GiB is free. " +
	"Including non-PyTorch memory, this process has 22.22 GiB memory in use. Of the allocated memory 21.50 GiB is allocated by PyTorch, and 250.11 MiB is reserved by PyTorch but unallocated.\n"

func TestTheHeadlineHasTheMessagesFigures(t *testing.T) {
	_, e := explained(t, i18n.English, message)
	if want := "GPU 3 ran out of memory in the backward pass: 2.00 GiB was asked for and 1.41 GiB of 23.64 GiB was free."; e.Headline != want {
		t.Errorf("headline = %q, want %q", e.Headline, want)
	}
	_, e = explained(t, i18n.Chinese, message)
	if want := "GPU 3 反向传播时显存不足：申请 2.00 GiB，而 23.64 GiB 中只剩 1.41 GiB。"; e.Headline != want {
		t.Errorf("headline = %q, want %q", e.Headline, want)
	}
}

func TestTheAccountSumsToTheCapacity(t *testing.T) {
	_, e := explained(t, i18n.English, message)
	sum := e.Account.Total
	for _, r := range e.Account.Rows {
		sum -= r.Bytes
	}
	if sum != 0 {
		t.Errorf("the rows miss the capacity by %v", sum)
	}
}

func TestWhereItWasFound(t *testing.T) {
	_, e := explained(t, i18n.English, message)
	var got []string
	for _, f := range e.Found {
		got = append(got, f.What+" "+f.At)
	}
	if want := "message run/train.log:5|your line /home/me/train.py:12|step train.log:1"; strings.Join(got, "|") != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestNothingFoundShowsTheLastError(t *testing.T) {
	d, e := explained(t, i18n.English, "a\nValueError: bad\n")
	if d.Verdict != diagnose.NothingFound || e.Headline != "No out-of-memory found; the last error is (run/train.log:2): ValueError: bad" || e.Lead != "" {
		t.Errorf("%s: %q, %q", d.Verdict, e.Headline, e.Lead)
	}
}

func TestOtherFrameworksGetNoPyTorchCode(t *testing.T) {
	_, e := explained(t, i18n.English, "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.\n")
	for _, r := range e.Remedies {
		if regexp.MustCompile(`loss\.backward|torch\.`).MatchString(r.Change) {
			t.Errorf("%s shows PyTorch code for JAX: %s", r.Code, r.Change)
		}
	}
}

func TestShortNamesTellFilesApart(t *testing.T) {
	got := shortNames([]string{"logs/a/0/stderr.log", "logs/a/1/stderr.log", "logs/a/1/stdout.log"})
	if got["logs/a/0/stderr.log"] != "0/stderr.log" || got["logs/a/1/stderr.log"] != "1/stderr.log" {
		t.Errorf("got %v", got)
	}
	if got := shortNames([]string{"/x/train.log"}); got["/x/train.log"] != "train.log" {
		t.Errorf("got %v", got)
	}
}

// Each value that a diagnosis can have has its words.
func TestEveryValueHasItsWords(t *testing.T) {
	for _, lang := range []i18n.Lang{i18n.English, i18n.Chinese} {
		words := i18n.Load(lang)
		var ids []string
		for _, p := range []oomlog.Phase{
			oomlog.PhaseLoad, oomlog.PhaseData, oomlog.PhaseForward, oomlog.PhaseLoss, oomlog.PhaseBackward, oomlog.PhaseStep,
			oomlog.PhaseCommunication, oomlog.PhaseEvaluation, oomlog.PhaseSave, oomlog.PhaseResume, oomlog.PhaseEngine,
		} {
			ids = append(ids, "explain.in."+string(p))
		}
		for _, k := range []account.Kind{
			account.OtherProcesses, account.Outside, account.OutsideOrOther, account.ThisProcess, account.Weights, account.Gradients, account.OptimizerState,
			account.Activations, account.Temporaries, account.Allocated, account.PrivatePools, account.Cached, account.Free, account.Unknown,
		} {
			ids = append(ids, "explain.part."+string(k))
		}
		for _, r := range strings.Fields("host shared_memory pinned kv_cache disk on_chip none not") {
			ids = append(ids, "explain.out."+r)
		}
		for _, id := range ids {
			if !words.Has(id) {
				t.Errorf("%s has no text in %s", id, lang)
			}
		}
	}
}
