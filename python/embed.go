// Package python is what unoom puts into the training process: the Python
// package unoom and the bootstrap that loads it. They travel in the binary, so
// that the two sides of the protocol cannot drift apart.
package python

import "embed"

// Files holds unoom/*.py and bootstrap/*.py.
//
//go:embed unoom/*.py bootstrap/*.py
var Files embed.FS
