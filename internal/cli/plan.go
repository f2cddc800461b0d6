package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/cloud"
	"unoom/internal/gpu"
	"unoom/internal/i18n"
	"unoom/internal/memory"
	"unoom/internal/plan"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// planCommand holds the flags of the command.
type planCommand struct {
	*app
	workload workloadFlags

	allow, headroom, host string
	targets, clouds       []string
	keepMath, why         bool
	maxPrice              float64
	maxGPUs               int

	emit    emitFlags
	emitTo  string // the targets to write files for
	gpuName string
	count   int
	// batchless says that nobody stated a batch for GPUs that are not chosen yet.
	batchless bool
}

func (a *app) planCommand() *cobra.Command {
	p := &planCommand{app: a}
	p.workload.cards = a.cards
	c := &cobra.Command{
		Use:     "plan [--model MODEL] --gpu GPUS [FILE]... [-- COMMAND...]",
		Aliases: []string{"recommend"},
		Short:   "Find the fastest setting that fits, or the GPUs that would",
		Long: "plan searches micro-batch and accumulation, checkpointing, sharding and parallelism,\n" +
			"offload and the rest for the fastest setting that fits, with the batch kept exactly\n" +
			"and the mathematics unchanged unless --allow says otherwise. It tells what each\n" +
			"change saves and costs, and what would be needed where nothing fits.\n\n" +
			"With --gpu any it looks for the hardware: the smallest, the cheapest for a step,\n" +
			"the fastest.",
		Example: "  unoom plan --model llama-3.1-8b --gpu 8xh100-80gb --global-batch 64 --seq 4096\n" +
			"  unoom plan --model llama-3.1-8b --gpu rtx-4090 --global-batch 16 --allow peft --why\n" +
			"  unoom plan --model qwen2.5-7b --gpu any --global-batch 32 --max-price 10\n" +
			"  unoom plan axolotl.yaml --gpu 2xrtx-4090",
		RunE: func(c *cobra.Command, args []string) error { return p.run(args, c.ArgsLenAtDash()) },
	}
	p.workload.add(c)
	f := c.Flags()
	f.StringVar(&p.allow, "allow", "", "changes of what is computed: any of precision,peft,optimizer,sequence")
	f.BoolVar(&p.keepMath, "keep-math", false, "change nothing of what is computed (the default)")
	f.StringVar(&p.headroom, "headroom", "5%", "share of the card to leave free")
	f.StringSliceVar(&p.targets, "target", nil, "training stacks: hf, torchtitan, megatron, deepspeed or any (default: that of --framework)")
	f.StringVar(&p.host, "host-memory", "", "RAM of the host for each GPU, such as 128GiB; limits offload")
	f.BoolVar(&p.why, "why", false, "answer the usual questions with this run's numbers")
	f.Float64Var(&p.maxPrice, "max-price", 0, "with --gpu any: US dollars an hour for all GPUs together")
	f.StringSliceVar(&p.clouds, "cloud", nil, "rent of these clouds (all for any of them): machines with their prices; goes with --gpu any")
	f.IntVar(&p.maxGPUs, "max-gpus", 0, "with --gpu any: at most so many GPUs (default 8)")
	f.StringVar(&p.emitTo, "emit", "", "write the best plan as files of these targets (`unoom emit --help` lists them); needs -o")
	p.emit.add(c)
	_ = c.RegisterFlagCompletionFunc("cloud", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		all, _ := cloud.Published()
		return append(cloud.Names(all), "all"), cobra.ShellCompDirectiveNoFileComp
	})
	_ = c.RegisterFlagCompletionFunc("target", cobra.FixedCompletions([]string{"hf", "torchtitan", "megatron", "deepspeed", "any"}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("allow", cobra.FixedCompletions([]string{"precision", "peft", "optimizer", "sequence"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (p *planCommand) run(args []string, dash int) error {
	if len(p.targets) == 0 {
		p.targets = p.emitStacks()
	}
	if err := p.workload.state(args, dash); err != nil {
		return err
	}
	req, err := p.request()
	if err != nil {
		return err
	}
	if err := p.checkEmit(); err != nil {
		return err
	}
	if p.workload.gpu == "any" {
		return p.market(req)
	}
	r, err := plan.Make(req)
	if err != nil {
		return p.requestError(err)
	}
	if len(r.Plans) == 0 {
		p.addBigger(req, r)
	}
	if p.json {
		err = p.printJSON("unoom/plan/v1", p.warnings(req.Workload), p.jsonOf(r))
	} else {
		err = p.printPlan(r)
	}
	if err == nil && len(r.Plans) == 0 {
		err = answerNo{}
	}
	if err == nil && p.emitTo != "" {
		err = p.emitPlan(&p.emit, p.emitTo, r, p.workload.model)
	}
	return err
}

// request reads the flags.
func (p *planCommand) request() (*plan.Request, error) {
	w := &p.workload
	if len(p.clouds) > 0 && w.gpu == "" && w.capacity == "" {
		w.gpu = "any"
	}
	any := w.gpu == "any"
	switch {
	case any && w.capacity != "":
		return nil, withHint(errors.New("--gpu any and --capacity contradict each other"), "leave one of them out")
	case !any && len(p.clouds) > 0:
		return nil, withHint(errors.New("--cloud looks for machines, but the GPUs are given"), "write --gpu any, or leave --cloud out")
	case !any && (p.maxPrice != 0 || p.maxGPUs != 0):
		return nil, withHint(errors.New("--max-price and --max-gpus go with --gpu any"), "write --gpu any, or leave them out")
	case p.maxPrice < 0 || p.maxGPUs < 0 || p.maxGPUs > 4096:
		return nil, withHint(errors.New("--max-price and --max-gpus are positive, and at most 4096 GPUs are looked at"), "leave them out for no limit")
	}
	m, err := p.modelOf(w)
	if err != nil {
		return nil, err
	}
	cards := gpu.Request{Count: 1}
	if !any {
		if cards, err = p.cardsOf(w); err != nil {
			return nil, err
		}
		if cards.Card.Name == "" {
			return nil, withHint(errors.New("--gpu is missing"), "name the GPUs, such as --gpu rtx-4090 or --gpu 8xh100-80gb, or their memory with --capacity")
		}
	}
	if w.framework == "" && len(p.targets) == 1 && slices.Contains(plan.Targets(), plan.Target(p.targets[0])) {
		w.said.Settings[workload.FieldFramework] = workload.Stated{Value: p.targets[0], Name: "--target"}
	}
	wl, err := w.build(m, cards)
	if err != nil {
		return nil, err
	}
	req := &plan.Request{Workload: wl, Batch: int(w.batch), Hardware: plan.HardwareOf(&cards.Card, cards.Count)}
	p.gpuName, p.count = cards.Card.Name, cards.Count
	if w.gpu == "" && w.capacity != "" {
		p.gpuName = p.say("card_of", p.gpuName)
		req.Hardware.Name = p.gpuName
	}
	if any && !w.said.Says(workload.FieldGlobalBatch, workload.FieldMicroBatch, workload.FieldAccumulation) {
		// One sample a step would rule out every set of several GPUs.
		p.batchless, req.Batch = true, max(8, p.maxGPUs)
	}
	switch {
	case p.host != "":
		if req.Hardware.Host, err = units.ParseBytes(p.host); err != nil {
			return nil, fmt.Errorf("--host-memory: %w", err)
		}
	case !any: // the host of cards that are not chosen yet is not known
		machines, err := cloud.Published()
		if err != nil {
			return nil, err
		}
		req.Hardware.AssumeHost(machines)
	}
	if req.Headroom, err = share(p.headroom); err != nil {
		return nil, err
	}
	if req.Allow, err = p.allowed(); err != nil {
		return nil, err
	}
	if req.Targets, err = p.stacks(wl); err != nil {
		return nil, err
	}
	engine, err := memory.New()
	if err != nil {
		return nil, err
	}
	req.Judge, req.Quick = engine.Estimate, engine.Quick
	return req, nil
}

// share reads "5%" or "0.05".
func share(text string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	if err != nil || v < 0 || v >= 1 {
		return 0, withHint(fmt.Errorf("--headroom %q: not a share of the card", text), "write it as 5% or 0.05")
	}
	return v, nil
}

func (p *planCommand) allowed() (plan.Allow, error) {
	var a plan.Allow
	for name := range strings.SplitSeq(p.allow, ",") {
		switch strings.TrimSpace(name) {
		case "":
		case "precision":
			a.Precision = true
		case "peft":
			a.PEFT = true
		case "optimizer":
			a.Optimizer = true
		case "sequence":
			a.Sequence = true
		default:
			return a, withHint(fmt.Errorf("--allow %q: not a choice", name), "any of precision,peft,optimizer,sequence")
		}
	}
	if p.keepMath && a != (plan.Allow{}) {
		return a, withHint(fmt.Errorf("--keep-math and --allow %s contradict each other", p.allow), "leave one of them out")
	}
	return a, nil
}

// stacks are those a plan may use: --target, else what the workload uses. The
// Trainer drives DeepSpeed as well.
func (p *planCommand) stacks(w *workload.Workload) ([]plan.Target, error) {
	if len(p.targets) == 0 {
		switch w.Framework {
		case workload.HFTrainer:
			return []plan.Target{plan.HF, plan.DeepSpeed}, nil
		case workload.DeepSpeed:
			return []plan.Target{plan.DeepSpeed}, nil
		case workload.Torchtitan:
			return []plan.Target{plan.Torchtitan}, nil
		case workload.Megatron:
			return []plan.Target{plan.Megatron}, nil
		}
		return nil, nil
	}
	var out []plan.Target
	for _, n := range p.targets {
		t := plan.Target(strings.ToLower(strings.TrimSpace(n)))
		switch {
		case t == plan.AnyTarget:
			return nil, nil
		case !slices.Contains(plan.Targets(), t):
			return nil, withHint(fmt.Errorf("--target %q: not a choice", n), "hf, torchtitan, megatron, deepspeed or any")
		}
		out = append(out, t)
	}
	return out, nil
}

// requestError words what contradicts itself.
func (p *planCommand) requestError(err error) error {
	e, ok := errors.AsType[*plan.RequestError](err)
	if !ok {
		return err
	}
	if e.Code == "image_target" {
		return withHint(fmt.Errorf("--target %s: does not train image networks", strings.Join(p.targets, ",")), "--target hf or deepspeed")
	}
	if e.Code == "inference" {
		return withHint(errors.New("nothing is trained: there is no setting to plan"), "--method full, lora or qlora")
	}
	return err
}

// addBigger adds the smallest card with which as many would do.
func (p *planCommand) addBigger(req *plan.Request, r *plan.Result) {
	kinds, err := p.kindsOfCards()
	if err != nil {
		return
	}
	if h, err := plan.Bigger(req, kinds); err == nil && h != nil {
		if need, ok := plan.NeedOn(req, *h); ok {
			r.Needs = slices.Insert(r.Needs, min(1, len(r.Needs)), need)
		}
	}
}

// kindsOfCards are the cards of the catalogue that one would train on: no slices,
// no laptops.
func (a *app) kindsOfCards() ([]plan.Hardware, error) {
	cards, err := a.cards()
	if err != nil {
		return nil, err
	}
	var kinds []plan.Hardware
	for i := range cards {
		if cards[i].MIG == "" && !cards[i].Laptop {
			kinds = append(kinds, plan.HardwareOf(&cards[i], 1))
		}
	}
	return kinds, nil
}

// rented are the cards that some cloud rents out.
func (a *app) rented() ([]plan.Hardware, error) {
	machines, err := cloud.Published()
	if err != nil {
		return nil, err
	}
	kinds, err := a.kindsOfCards()
	return slices.DeleteFunc(kinds, func(h plan.Hardware) bool {
		return !slices.ContainsFunc(machines, func(m cloud.Machine) bool { return m.GPU == h.Name })
	}), err
}

// machines are those of the clouds that were asked for.
func (p *planCommand) machines() ([]plan.Hardware, error) {
	all, err := cloud.Published()
	if err != nil {
		return nil, err
	}
	cards, err := p.cards()
	if err != nil {
		return nil, err
	}
	names := cloud.Names(all)
	for _, c := range p.clouds {
		if c != "all" && !slices.Contains(names, c) {
			return nil, withHint(fmt.Errorf("--cloud %q: not known", c), "the clouds are "+strings.Join(names, ", ")+"; or all")
		}
	}
	var out []plan.Hardware
	for i := range all {
		m := &all[i]
		if !slices.Contains(p.clouds, m.Cloud) && !slices.Contains(p.clouds, "all") {
			continue
		}
		at := slices.IndexFunc(cards, func(c gpu.Card) bool { return c.Name == m.GPU })
		if at < 0 {
			continue
		}
		out = append(out, plan.OnMachine(&cards[at], m))
	}
	return out, nil
}

// market answers --gpu any.
func (p *planCommand) market(req *plan.Request) error {
	kinds, err := p.kindsOfCards()
	if len(p.clouds) > 0 {
		kinds, err = p.machines()
	}
	if err != nil {
		return err
	}
	o, err := plan.Choose(req, &plan.Market{Kinds: kinds, MaxGPUs: p.maxGPUs, MaxPrice: p.maxPrice})
	if err != nil {
		return p.requestError(err)
	}
	var nearest *plan.Offer
	if o.Smallest == nil {
		nearest = p.nearest(req, kinds)
	}
	if p.json {
		warnings := p.warnings(req.Workload)
		if p.batchless {
			warnings = append(warnings, warning{Code: "assumed", Msg: fmt.Sprintf("global_batch = %d: nobody said", req.Batch)})
		}
		err = p.printJSON("unoom/plan/v1", warnings, map[string]any{
			"hardware": offersJSON{o.Considered, o.Fitting, offerOf(o.Smallest), offerOf(o.Cheapest), offerOf(o.Fastest), offerOf(nearest)}, "plans": []onePlanJSON{}})
	} else {
		err = p.printOffers(o, nearest)
	}
	if err == nil && o.Smallest == nil {
		err = answerNo{}
	}
	return err
}

// nearest is a set of GPUs that can do it beyond the limits, which are doubled
// until one can; nil if none does.
func (p *planCommand) nearest(req *plan.Request, kinds []plan.Hardware) *plan.Offer {
	limits := plan.Market{Kinds: kinds, MaxGPUs: max(p.maxGPUs, 8), MaxPrice: p.maxPrice}
	for limits.MaxGPUs < 4096 {
		limits.MaxGPUs, limits.MaxPrice = 2*limits.MaxGPUs, 2*limits.MaxPrice
		if o, err := plan.Choose(req, &limits); err != nil || o.Smallest != nil {
			return o.Smallest
		}
	}
	return nil
}

// warnings lists what was assumed.
func (p *planCommand) warnings(w *workload.Workload) []warning {
	return append(warningTexts(i18n.Load(i18n.English), p.workload.said), assumed(w)...)
}
