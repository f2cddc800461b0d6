package catalog

import "embed"

// Stacks holds stacks/STACK.md: how remedies are applied in the words of a
// trainer or program that has names of its own; internal/remedy reads them.
//
//go:embed stacks/*.md
var Stacks embed.FS
