package supervise

import "unoom/internal/ledger"

// A DryRun is what Run would do first.
type DryRun struct {
	Command      []string        `json:"command"`
	BatchBy      string          `json:"batch_by"` // template, or shim where a framework would be changed
	MicroBatch   int             `json:"micro_batch"`
	Accumulation int             `json:"accumulation"`
	World        int             `json:"world"`
	GlobalBatch  int             `json:"global_batch"`
	Folder       string          `json:"folder"`
	Settings     ledger.Settings `json:"settings"`
	KnownFrom    string          `json:"known_from,omitempty"` // the earlier run whose settings are taken over
}

// Dry works out the first attempt without running it.
func Dry(o Options) (DryRun, error) {
	s := &session{Options: o, template: ParseTemplate(o.Command)}
	settings, err := s.template.Start(o.GlobalBatch, o.MicroBatch, o.world())
	if err != nil {
		return DryRun{}, err
	}
	d := DryRun{BatchBy: "shim", World: max(1, o.world()), GlobalBatch: o.GlobalBatch, Folder: o.RunDir}
	if s.template.Batch() {
		d.BatchBy = "template"
	}
	if d.Folder == "" {
		d.Folder = o.Root.Runs()
	}
	s.Say = func(_ string, args ...any) {
		if len(args) == 1 {
			d.KnownFrom, _ = args[0].(string)
		}
	}
	settings, _, _ = s.startFrom(settings)
	d.Settings, d.MicroBatch, d.Accumulation = settings, settings.MicroBatch, settings.Accumulation
	d.Command = s.template.Fill(settings, o.GlobalBatch, 1)
	return d, nil
}
