// Package supervise runs a command so that it behaves exactly as it would
// alone, until it runs out of memory: then it finds out why, changes what is
// cheapest and sufficient, and starts it again from its newest checkpoint.
//
// Invariants. A command that needs no help is not changed: same streams, same
// terminal, same signals, same exit status. The effective batch is the same in
// every attempt. A bug is never retried. When the supervisor ends, also when it
// is killed, no process of a failed attempt is left. What goes wrong inside the
// supervisor is reported and does not end the command.
//
// It does not know how a remedy is worked out for a model that was never run:
// that is package plan; it measures, and asks a Predictor where there is one.
package supervise
