// Package remedy is the one home of what can be done about memory: every
// change that saves some, when it applies, how much it frees here, what it
// costs, whether it changes the mathematics, and how to make it in the user's
// framework. explain, plan, run, report and the docs draw on this list.
package remedy

// A Code names a remedy: family.name, such as "recompute.checkpointing". Codes
// are stable.
type Code string
